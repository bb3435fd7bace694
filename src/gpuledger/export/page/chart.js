// A line chart of the last ten minutes. Unknown values are gaps.

import { mark, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 40;

const SPANS = [60, 120, 300, 600];
const POINTS = 150; // more points would blur the line

// The time span of a chart, which grows with the history.
export function spanOf(times) {
  const known = times.length ? times.at(-1) - times[0] : 0;
  return SPANS.find((span) => known <= span) ?? SPANS.at(-1);
}

export function spanName(times) {
  const minutes = spanOf(times) / 60;
  return minutes === 1 ? "last minute" : `last ${minutes} minutes`;
}

// Means of neighbouring points, in fixed time slots so that they are the same from tick to tick.
function thinned(times, values, width) {
  const points = [];
  let group = null;
  for (let index = 0; index < values.length; index += 1) {
    const number = Math.floor(times[index] / width);
    if (group?.number !== number) points.push(group = { number, time: times[index], sum: 0, count: 0 });
    if (values[index] !== null) {
      group.sum += values[index];
      group.count += 1;
    }
  }
  return points;
}

export class Chart {
  constructor(name, show) {
    this.name = name;
    this.show = show;
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.node = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      this.area, this.line);
  }

  // `times` and `values`: oldest first. `top`: the value at the upper edge; by default the largest value.
  draw(times, values, top) {
    const seconds = spanOf(times);
    const known = values.filter((value) => value !== null);
    const high = Math.max(top ?? 0, ...known) || 1;
    const end = times.at(-1) ?? 0;
    let line = "";
    let area = "";
    let start = null;
    let x = 0;
    const close = () => {
      if (start !== null) area += `L${x} ${HEIGHT}L${start} ${HEIGHT}Z`;
      start = null;
    };
    for (const { time, sum, count } of thinned(times, values, seconds / POINTS)) {
      if (!count) {
        close();
        continue;
      }
      const value = sum / count;
      x = Math.round((1 - (end - time) / seconds) * WIDTH * 10) / 10;
      const y = Math.round((1 - Math.max(0, value) / high) * (HEIGHT - 2) * 10) / 10 + 1;
      const step = `${start === null ? "M" : "L"}${x} ${y}`;
      if (start === null) start = x;
      line += step;
      area += step;
    }
    close();
    mark(this.line, "d", line);
    mark(this.area, "d", area);
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    mark(this.node, "aria-label", known.length
      ? `${this.name}, ${spanName(times)}: mean ${this.show(mean)}, highest ${this.show(Math.max(...known))}`
      : `${this.name}: no data yet`);
  }
}
