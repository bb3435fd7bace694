// The table of owners: sorting, filtering, grouping. Elements are reused from snapshot to snapshot.

import { colour } from "./colours.js";
import { Details } from "./details.js";
import { arrange, el, find, isPlainClick, mark, say, tell } from "./dom.js";
import { NONE, count, inUnitOf, percent, plural, ratio } from "./format.js";
import { grouped, matching, methodsOf, rowsOf, sorted, sumOf } from "./rows.js";

const COLUMNS = [
  { id: "name", title: "Owner" },
  { id: "gpu", title: "GPU", small: true },
  { id: "memory", title: "Memory", number: true },
  { id: "sm", title: "SM", number: true, small: true, about: "Share of the SM (compute engine) time" },
  { id: "watts", title: "Power", number: true },
  { id: "joules", title: "Energy", number: true, about: "Since the start of the process or of the exporter" },
  { id: "asked", title: "Used / asked", number: true, wide: "asked", about: "GPUs used and asked for, of owners that asked for a part of a GPU" },
  { id: "how", title: "How known", wide: "how", about: "Whether the energy is measured or estimated; memory is measured unless it is inferred" },
];
const NARROW = matchMedia("(max-width: 640px)");
const columns = () => [...find("table").tHead.rows[0].cells].filter((cell) => cell.offsetWidth).length;
const FEW = 100;
const FEWER = 20; // on a phone, where the GPUs are below the table
const MORE = 400;
const BADGES = { "energy measured": "ok", "energy partly measured": "", "energy estimated": "", "memory inferred": "guess" };

class Row {
  constructor(table, key) {
    this.toggle = el("button", { class: "toggle", type: "button", onclick: () => table.flip(key) });
    this.swatch = el("span", { class: "swatch" });
    this.name = el("span", { class: "name" });
    this.parts = el("span", { class: "parts" });
    this.gpu = el("td", { class: "small" });
    const data = () => el("data");
    Object.assign(this, { memory: data(), sm: data(), watts: data(), joules: data(), asked: data() });
    this.badge = el("span", { class: "badge" });
    this.node = el("tr", { onclick: (event) => key && isPlainClick(event) && table.flip(key) },
      el("th", { scope: "row" }, el("div", { class: "who" }, this.toggle, this.swatch,
        el("span", { class: "names" }, this.name, this.parts))),
      this.gpu,
      el("td", { class: "number" }, this.memory),
      el("td", { class: "number small" }, this.sm),
      el("td", { class: "number" }, this.watts),
      el("td", { class: "number" }, this.joules),
      el("td", { class: "number asked" }, this.asked),
      el("td", { class: "how" }, this.badge));
  }

  numbers(row, units) {
    tell(this.memory, row.memory, units.memory(row.memory));
    mark(this.memory, "class", row.inferred ? "guess" : null);
    tell(this.sm, row.sm, percent(row.sm));
    tell(this.watts, row.watts, units.watts(row.watts));
    tell(this.joules, row.joules, units.joules(row.joules));
    tell(this.asked, row.asked?.gpus, row.asked ? `${ratio(row.asked.used)} / ${ratio(row.asked.gpus)}` : NONE);
    say(this.badge, row.how);
    mark(this.badge, "class", `badge ${BADGES[row.how] ?? "none"}`);
    mark(this.badge, "title", row.methods ? methodsOf(row).join("\n") : null);
  }

  single(row, units, open) {
    this.numbers(row, units);
    say(this.name, row.name);
    say(this.parts, row.parts.filter(Boolean).join(" · "));
    say(this.gpu, `${row.gpu}${row.mig ? " MIG" : ""}`);
    mark(this.node, "class", row.gone ? "gone" : row.idle ? "idle" : null);
    mark(this.swatch, "class", `swatch ${row.inferred ? "inferred " : ""}${row.others ? "others" : colour(row.owner)}`);
    this.opened(open, `details of ${row.name}`);
  }

  group(sum, units, open) {
    this.numbers(sum, units);
    say(this.name, sum.name);
    say(this.parts, plural(sum.rows.length, "row", "rows"));
    say(this.gpu, sum.gpus.size > 3 ? plural(sum.gpus.size, "GPU", "GPUs") : [...sum.gpus].sort((a, b) => a - b).join(", "));
    mark(this.node, "class", "group");
    mark(this.swatch, "class", "swatch none");
    this.opened(open, `rows of ${sum.name}`);
  }

  opened(open, what) {
    mark(this.toggle, "aria-expanded", String(open));
    mark(this.toggle, "aria-label", `${open ? "Hide" : "Show"} ${what}`);
  }
}

export class Table {
  constructor(view, changed) {
    this.view = view;
    this.changed = changed;
    this.made = new Map();
    this.details = new Map();
    this.open = new Set();
    this.shut = new Set();
    this.most = NARROW.matches ? FEWER : FEW;
    const [head, body] = find("table").children;
    this.body = body;
    this.heads = COLUMNS.map((column) => {
      const { title, about, number, small, wide } = column;
      const button = el("button", { type: "button", text: title, title: about ?? null, onclick: () => this.sort(column) });
      return el("th", { scope: "col", class: [number && "number", small && "small", wide].filter(Boolean).join(" ") }, button);
    });
    this.total = new Row(this, "");
    this.total.toggle.hidden = true;
    mark(this.total.node, "class", "total");
    head.append(el("tr", {}, ...this.heads), this.total.node);
    find("all").addEventListener("click", () => this.set({ filter: "" }));
    find("filter").addEventListener("input", (event) => this.set({ filter: event.target.value }));
    find("group").addEventListener("change", (event) => this.set({ group: event.target.value }));
    find("more").addEventListener("click", () => {
      this.most += MORE;
      this.draw();
    });
  }

  set(view) {
    Object.assign(this.view, view);
    this.changed();
    this.draw();
  }

  sort(column) {
    const again = this.view.column === column.id;
    this.set({ column: column.id, descending: again ? !this.view.descending : Boolean(column.number) });
  }

  flip(key) {
    const set = key.startsWith("group ") ? this.shut : this.open;
    if (!set.delete(key)) set.add(key);
    this.draw();
  }

  update(snapshot, past, seconds) {
    this.rows = rowsOf(snapshot);
    Object.assign(this, { past, seconds });
    this.draw();
  }

  draw() {
    if (!this.rows) return;
    this.mirror();
    const rows = matching(this.rows, this.view.filter);
    const [sum, all] = [sumOf(rows, "", "Sum"), sumOf(this.rows, "", "")];
    // The units are those of all rows, so that a filter changes none.
    this.units = {
      memory: inUnitOf("bytes", all.memory), watts: inUnitOf("watts", all.watts), joules: inUnitOf("joules", all.joules),
    };
    const lines = this.view.group ? this.byGroup(rows) : sorted(rows, this.view);
    const nodes = [];
    const keys = new Set();
    for (const line of lines.slice(0, this.most)) {
      keys.add(line.key);
      nodes.push(this.line(line));
      if (!line.rows && this.open.has(line.key)) nodes.push(this.detail(line));
    }
    for (const key of this.made.keys()) if (!keys.has(key)) this.made.delete(key);
    for (const key of this.details.keys()) if (!keys.has(key) || !this.open.has(key)) this.details.delete(key);
    arrange(this.body, nodes);
    find("table").classList.toggle("with-asked", this.rows.some((row) => row.asked));
    this.foot(rows, sum, lines.length);
  }

  byGroup(rows) {
    return sorted(grouped(rows, this.view.group), this.view)
      .flatMap((group) => [group, ...(this.shut.has(group.key) ? [] : sorted(group.rows, this.view))]);
  }

  line(line) {
    if (!this.made.has(line.key)) this.made.set(line.key, new Row(this, line.key));
    const row = this.made.get(line.key);
    if (line.rows) row.group(line, this.units, !this.shut.has(line.key));
    else row.single(line, this.units, this.open.has(line.key));
    return row.node;
  }

  detail(row) {
    if (!this.details.has(row.key)) this.details.set(row.key, new Details(columns));
    const details = this.details.get(row.key);
    details.update(row, this.past, this.seconds);
    return details.node;
  }

  foot(rows, sum, lines) {
    this.total.numbers(sum, this.units);
    say(this.total.name, this.view.filter ? "Sum of the shown rows" : "Sum");
    const all = plural(this.rows.length, "row", "rows");
    say(find("count"), rows.length === this.rows.length ? all : `${count(rows.length)} of ${all}`);
    find("empty").hidden = rows.length > 0;
    find("all").hidden = !this.view.filter;
    say(find("empty").firstElementChild, this.view.filter ? `No row contains “${this.view.filter}”.` : "No process uses a GPU.");
    find("sm-note").hidden = !(sum.sm > 1);
    const more = find("more");
    more.hidden = lines <= this.most;
    say(more, more.hidden ? "" : `Show ${count(Math.min(MORE, lines - this.most))} more of ${count(lines)}`);
  }

  // Update the controls to match the view, which the address bar may have changed.
  mirror() {
    for (const [index, column] of COLUMNS.entries()) {
      const way = this.view.descending ? "descending" : "ascending";
      mark(this.heads[index], "aria-sort", column.id === this.view.column ? way : null);
    }
    if (find("filter").value !== this.view.filter) find("filter").value = this.view.filter;
    if (find("group").value !== this.view.group) find("group").value = this.view.group;
  }
}
