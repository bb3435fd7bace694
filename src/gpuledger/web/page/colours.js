// The colour of each owner, which the exporter chooses, so that it is the same on each page and in `gpuledger top`.

const MOST = 5000; // owners that a page remembers, those seen last
const colours = new Map();

export function learn(numbers) {
  for (const [owner, number] of numbers) {
    colours.delete(owner);
    colours.set(owner, number);
  }
  for (const owner of [...colours.keys()].slice(0, Math.max(0, colours.size - MOST))) colours.delete(owner);
}

export function colour(owner) {
  return `c${colours.get(owner) ?? 0}`;
}
