// A colour for each owner on the screen, by a checksum of its name; if it is taken, the next one with the fewest owners.
// Owners choose in the order of their names, so that the colours are the same from load to load, and in `gpuledger top`.

const COLOURS = 8;
let known = "";
let chosen = new Map();

function crc32(text) {
  let value = -1;
  for (const byte of new TextEncoder().encode(text)) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit += 1) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  }
  return (value ^ -1) >>> 0;
}

// `past`: owners that only the charts show; they choose last.
export function choose(present, past) {
  const owners = [...new Set([...[...present].sort(), ...[...past].sort()])];
  if (owners.join("\n") === known) return;
  known = owners.join("\n");
  chosen = new Map();
  const taken = new Array(COLOURS).fill(0);
  for (const owner of owners) {
    const wanted = crc32(owner) % COLOURS;
    const order = taken.map((_, step) => (wanted + step) % COLOURS);
    const best = order.find((number) => taken[number] === Math.min(...taken));
    taken[best] += 1;
    chosen.set(owner, best);
  }
}

export function colour(owner) {
  return `c${chosen.get(owner) ?? crc32(owner) % COLOURS}`;
}
