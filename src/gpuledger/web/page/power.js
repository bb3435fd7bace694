// The power of all GPUs, stacked by owner.

import { Chart } from "./chart.js";
import { colour } from "./colours.js";
import { arrange, el, find, mark, say, tell } from "./dom.js";
import { plural, watts } from "./format.js";

const NAMED = 8; // the number of colours
const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

// Of the owners, those that used the most in this time are layers of their own; the others share a layer.
function layersOf(past, seconds) {
  const { times, rows } = past.owners;
  const start = times.findIndex((time) => time >= times.at(-1) - seconds);
  const owners = [...rows].filter(([name]) => name)
    .map(([name, row]) => ({ name, values: row.watts, used: sum(row.watts.slice(start)) }))
    .filter((owner) => owner.used > 0)
    .sort((a, b) => b.used - a.used || (a.name < b.name ? -1 : 1));
  const named = owners.slice(0, owners.length > NAMED ? NAMED - 1 : NAMED);
  const layers = named.map((owner) => ({ ...owner, look: colour(owner.name) }));
  const others = owners.slice(named.length);
  if (others.length) {
    const values = times.map((_, index) => sum(others.map((owner) => owner.values[index])));
    layers.push({ name: plural(others.length, "other owner", "other owners"), values, look: "others" });
  }
  if (sum(past.unowned.slice(start)) > 0) layers.push({ name: "idle or unattributed", values: past.unowned, look: "unowned" });
  return layers;
}

export class Power {
  constructor() {
    this.chart = new Chart("Power by owner", watts, { stacked: true, focusable: true });
    this.legend = el("ul", { class: "legend" });
    this.made = new Map();
    find("power").append(el("h3", { text: "Power by owner" }), this.chart.plot, this.legend);
  }

  update(past, seconds) {
    const layers = layersOf(past, seconds);
    find("power").hidden = !layers.length;
    this.chart.draw(past.owners.times, layers, { seconds, end: past.gpus.times.at(-1) });
    arrange(this.legend, layers.map((layer) => this.item(layer)));
    const names = new Set(layers.map((layer) => layer.name));
    for (const name of this.made.keys()) if (!names.has(name)) this.made.delete(name);
  }

  item({ name, values, look }) {
    if (!this.made.has(name)) this.made.set(name, el("li", {}, el("span"), el("span", { class: "name" }), el("data")));
    const item = this.made.get(name);
    const [swatch, title, value] = item.children;
    mark(swatch, "class", `swatch ${look}`);
    say(title, name);
    tell(value, values.at(-1) ?? null, watts(values.at(-1)));
    return item;
  }
}
