// A chart of one line or of stacked areas, with a y-axis and the values of a moment on hover. Unknown values are gaps.

import { el, mark, say, svg } from "./dom.js";
import { clock, minutes } from "./format.js";

const WIDTH = 300;
const HEIGHT = 100;
const POINTS = 150; // more points would blur the line

// The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 or 10 times a power of ten (and of the unit) that is not below the value.
function roundTop(value, unit) {
  const power = 10 ** Math.floor(Math.log10(value / unit));
  return unit * power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => value / unit <= step * power * (1 + 1e-9));
}

// Means of neighbouring points in fixed time slots, so that they are the same from tick to tick.
function slotsOf(times, layers, { seconds, end, points }) {
  const width = seconds / points;
  const slots = [];
  let slot = null;
  for (let index = times.findIndex((time) => time >= end - seconds); index >= 0 && index < times.length; index += 1) {
    const number = Math.floor(times[index] / width);
    if (slot?.number !== number) {
      slot = { number, time: times[index], sums: layers.map(() => 0), counts: layers.map(() => 0) };
      slots.push(slot);
    }
    layers.forEach(({ values }, layer) => {
      if (values[index] === null || values[index] === undefined) return;
      slot.sums[layer] += values[index];
      slot.counts[layer] += 1;
    });
  }
  return slots.map(({ time, sums, counts }) => {
    const values = sums.map((sum, layer) => (counts[layer] ? sum / counts[layer] : null));
    const known = values.filter((value) => value !== null);
    return { time, values, total: known.length ? known.reduce((sum, value) => sum + value, 0) : null };
  });
}

// One box for all charts, outside of their cards, so that nothing clips it.
const tip = el("div", { class: "tip", role: "tooltip", hidden: true });
document.body.append(tip);
let current = null; // the chart that has the box
addEventListener("scroll", () => current?.leave(), { passive: true });
addEventListener("pointerdown", (event) => current?.area.contains(event.target) || current?.leave());

export class Chart {
  // `unit`: the size of the unit in which the y-axis has round numbers.
  constructor(name, show, { unit = 1, stacked = false, focusable = false } = {}) {
    Object.assign(this, { name, show, unit, stacked, slots: [], hovered: null });
    this.paths = svg("g");
    this.node = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, this.paths);
    this.cursor = el("span", { class: "cursor", hidden: true });
    this.area = el("div", { class: "area-of-chart" }, this.node, this.cursor);
    this.labels = [el("span"), el("span"), el("span")];
    this.ends = [el("span"), el("span", { text: "now" })];
    this.plot = el("div", { class: "plot" },
      el("div", { class: "y-axis", "aria-hidden": "true" }, ...this.labels), this.area,
      el("div", { class: "x-axis", "aria-hidden": "true" }, ...this.ends));
    for (const type of ["pointermove", "pointerdown"]) this.area.addEventListener(type, (event) => this.point(event));
    this.area.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.leave());
    if (focusable) this.listen();
  }

  // The arrow keys move from value to value.
  listen() {
    this.node.setAttribute("tabindex", "0");
    this.node.addEventListener("blur", () => this.leave());
    this.node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.leave();
      if (!step || !this.slots.length) return;
      event.preventDefault();
      const last = this.slots.length - 1;
      const at = this.hovered === null ? last + 1 : this.nearest(this.hovered);
      this.hover(this.x(this.slots[Math.min(last, Math.max(0, at + step))]));
    });
  }

  // `layers`: values and a class for each, bottom first. `top`: the value at the upper edge; by default a round number.
  draw(times, layers, { seconds, top = null, end = times.at(-1) ?? 0, points = POINTS }) {
    Object.assign(this, { seconds, end, points, layers });
    this.slots = slotsOf(times, layers, this);
    const highest = Math.max(0, ...this.slots.map((slot) => slot.total ?? 0));
    this.top = highest <= (top ?? 0) ? top : roundTop(highest, this.unit);
    this.top ||= this.unit;
    while (this.paths.children.length > layers.length * 2) this.paths.lastChild.remove();
    while (this.paths.children.length < layers.length * 2) this.paths.append(svg("path"));
    layers.forEach((layer, index) => this.layer(index, layer.look ?? ""));
    [this.top, this.top / 2, 0].forEach((value, index) => say(this.labels[index], this.show(value).replace(/\.0+(?= )/, "")));
    say(this.ends[0], `${minutes(seconds)} ago`);
    this.describe();
    if (this.hovered !== null) this.hover(this.hovered);
  }

  // An area and the line above it.
  layer(index, look) {
    const [area, line] = [this.paths.children[2 * index], this.paths.children[2 * index + 1]];
    const below = (slot) => slot.values.slice(0, index).reduce((sum, value) => sum + (value ?? 0), 0);
    const isGap = this.stacked ? (slot) => slot.total === null : (slot) => slot.values[index] === null;
    const y = (value) => Math.round((1 - Math.max(0, value) / this.top) * HEIGHT * 10) / 10;
    const lines = [];
    const areas = [];
    let run = [];
    const close = () => {
      if (!run.length) return;
      const upper = run.map(({ x, high }) => `${x} ${high}`).join("L");
      lines.push(`M${upper}`);
      areas.push(`M${upper}L${run.reverse().map(({ x, low }) => `${x} ${low}`).join("L")}Z`);
      run = [];
    };
    for (const slot of this.slots) {
      if (isGap(slot)) close();
      else {
        const base = below(slot);
        run.push({ x: Math.round(this.x(slot) * WIDTH * 10) / 10, low: y(base), high: y(base + (slot.values[index] ?? 0)) });
      }
    }
    close();
    mark(area, "class", `area ${look}`);
    mark(area, "d", areas.join(""));
    mark(line, "class", `line ${look}`);
    mark(line, "d", lines.join(""));
  }

  point(event) {
    const box = this.area.getBoundingClientRect();
    this.hover((event.clientX - box.left) / box.width);
  }

  // From 0 at the left edge to 1 at the right edge.
  x(slot) {
    return 1 - (this.end - slot.time) / this.seconds;
  }

  nearest(x) {
    let best = 0;
    this.slots.forEach((slot, index) => {
      if (Math.abs(this.x(slot) - x) < Math.abs(this.x(this.slots[best]) - x)) best = index;
    });
    return best;
  }

  hover(x) {
    const slot = this.slots[this.nearest(x)];
    if (!slot) return;
    if (current !== this) current?.leave();
    current = this;
    this.hovered = x;
    const place = this.x(slot);
    this.cursor.hidden = tip.hidden = false;
    this.cursor.style.left = `${place * 100}%`;
    const time = el("span", { class: "time", text: clock(slot.time) });
    const rows = this.stacked ? [...this.layers.entries()].reverse().filter(([index]) => slot.values[index]) : [];
    tip.replaceChildren(
      el("p", {}, el("strong", { text: this.show(slot.total) }), time),
      ...rows.map(([index, layer]) => el("p", {}, el("span", { class: `swatch ${layer.look}` }),
        el("span", { class: "name", text: layer.name }), el("span", { text: this.show(slot.values[index]) }))));
    const box = this.area.getBoundingClientRect();
    const left = box.left + place * box.width;
    const isRight = left + tip.offsetWidth + 16 > document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, isRight ? left - tip.offsetWidth - 10 : left + 10)}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top, innerHeight - tip.offsetHeight - 4))}px`;
  }

  leave() {
    this.hovered = current = null;
    this.cursor.hidden = tip.hidden = true;
  }

  describe() {
    const known = this.slots.map((slot) => slot.total).filter((value) => value !== null);
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    mark(this.node, "aria-label", known.length
      ? `${this.name}, last ${minutes(this.seconds)}: mean ${this.show(mean)}, highest ${this.show(Math.max(...known))}`
      : `${this.name}: no data yet`);
  }
}
