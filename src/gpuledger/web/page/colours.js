// A colour for each owner, chosen by a hash of the name so that it is stable; if it is in use, the next free one.

const COLOURS = 8;
const taken = new Map();

function hash(text) {
  let value = 2166136261;
  for (const letter of text) value = Math.imul(value ^ letter.codePointAt(0), 16777619);
  return (value ^ (value >>> 15)) >>> 0;
}

export function colour(owner) {
  if (!taken.has(owner)) {
    const wanted = hash(owner) % COLOURS;
    const used = new Map();
    for (const number of taken.values()) used.set(number, (used.get(number) ?? 0) + 1);
    let best = wanted;
    for (let step = 0; step < COLOURS; step += 1) {
      const number = (wanted + step) % COLOURS;
      if ((used.get(number) ?? 0) < (used.get(best) ?? 0)) best = number;
    }
    taken.set(owner, best);
  }
  return `c${taken.get(owner)}`;
}

// Release the colours of owners that are gone.
export function keep(owners) {
  for (const owner of taken.keys()) if (!owners.has(owner)) taken.delete(owner);
}
