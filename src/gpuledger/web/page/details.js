// All fields of a row, shown below it.

import { Chart } from "./chart.js";
import { arrange, el, mark, say } from "./dom.js";
import { bytes, dateTime, duration, minutes, percent, ratio, watts } from "./format.js";
import { methodsOf } from "./rows.js";

const OUTSIDE = "not in a container"; // no explanation needed
const FACTS = {
  Owner: (row) => row.owner,
  Process: ({ fields }) => fields.pid && `${fields.process_name || "?"}, pid ${fields.pid}`,
  Kind: ({ fields }) => fields.kind,
  User: ({ fields }) => fields.user,
  Image: ({ fields }) => fields.image,
  Workload: ({ fields }) => fields.workload,
  Unit: ({ fields }) => fields.unit,
  Job: ({ fields }) => fields.job,
  Runtime: ({ fields }) => fields.runtime,
  "Container id": ({ fields }) => fields.container_id,
  Device: (row) => `GPU ${row.gpu}, ${row.fields.uuid}`,
  "Asked for": ({ allocation }) => allocation && asked(allocation),
  "Used of it": ({ allocation }) => allocation && usedOf(allocation),
  Started: ({ fields }) => fields.start_time && dateTime(fields.start_time),
  "SM share": (row) => row.sm !== null && percent(row.sm),
  "SM time": ({ fields }) => fields.busy_seconds && duration(fields.busy_seconds),
  "Standard deviation of the energy share": ({ fields }) => fields.energy_share_error_ratio && percent(fields.energy_share_error_ratio),
  "Unknown because": ({ fields }) => fields.unknown_because !== OUTSIDE && fields.unknown_because,
};

const listed = (texts) => texts.filter(Boolean).join(", ");
const asked = ({ asked_ratio: gpus, asked_bytes: size, entitlement: source }) =>
  `${listed([gpus !== null && `${ratio(gpus)} of the GPU`, size !== null && bytes(size)])} (${source})`;
const usedOf = ({ compute_used_ratio: compute, memory_used_ratio: memory }) =>
  listed([compute !== null && `${percent(compute)} of the compute`, memory !== null && `${percent(memory)} of the memory`]);

export class Details {
  constructor(columns) {
    this.facts = el("dl", { class: "facts" });
    this.methods = el("ul", { class: "methods" });
    this.power = new Chart("power of this owner", watts, { focusable: true });
    this.memory = new Chart("memory of this owner", bytes, { unit: 2 ** 30, focusable: true });
    this.shown = { power: el("span"), memory: el("span") };
    const figure = (chart, caption) => el("figure", {}, el("figcaption", {}, caption), chart.plot);
    this.cell = el("td", {},
      el("div", { class: "inside" }, el("div", {}, this.facts, this.methods),
        el("div", { class: "owner-charts" }, figure(this.power, this.shown.power), figure(this.memory, this.shown.memory))));
    this.node = el("tr", { class: "details" }, this.cell);
    this.columns = columns;
    this.made = new Map();
  }

  update(row, past, seconds) {
    mark(this.cell, "colspan", this.columns());
    const nodes = [];
    for (const [name, of] of Object.entries(FACTS)) {
      const value = of(row);
      if (!value) continue;
      if (!this.made.has(name)) this.made.set(name, el("div", {}, el("dt", { text: name }), el("dd")));
      const fact = this.made.get(name);
      say(fact.lastChild, String(value));
      nodes.push(fact);
    }
    arrange(this.facts, nodes);
    const methods = methodsOf(row);
    while (this.methods.children.length > methods.length) this.methods.lastChild.remove();
    while (this.methods.children.length < methods.length) this.methods.append(el("li"));
    methods.forEach((text, index) => say(this.methods.children[index], text));
    this.draw(past, row.owner, seconds);
  }

  draw(past, owner, seconds) {
    const { times, rows } = past.owners;
    const own = rows.get(owner) ?? { watts: [], memory_bytes: [] };
    const span = { seconds, end: past.gpus.times.at(-1) };
    this.power.draw(times, [{ values: own.watts }], span);
    this.memory.draw(times, [{ values: own.memory_bytes }], span);
    say(this.shown.power, `Power of ${owner}, last ${minutes(seconds)}`);
    say(this.shown.memory, `Memory of ${owner}, last ${minutes(seconds)}`);
  }
}
