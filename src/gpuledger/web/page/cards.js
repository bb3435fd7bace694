// A card for each GPU, which includes its MIG instances. Many GPUs are compact rows, each of which opens as a card.

import { Chart } from "./chart.js";
import { colour } from "./colours.js";
import { arrange, el, find, isPlainClick, mark, say, tell } from "./dom.js";
import { addends, bytes, bytesOf, celsius, duration, joules, percent, plural, watts } from "./format.js";
import { IdleList, idleOn } from "./idle.js";
import { isListed } from "./rows.js";

const SLOWED = {
  sw_power_cap: "power cap",
  hw_slowdown: "slowed by hardware",
  sw_thermal_slowdown: "slowed by heat",
  hw_thermal_slowdown: "slowed by heat",
  hw_power_brake_slowdown: "power brake",
  sync_boost: "sync boost",
};
const NAMED = 8; // the number of colours
const MANY = 2; // from this number on, GPUs are compact rows, so that the table is on the first screen
const FEW_POINTS = 30; // in the narrow chart of a row
const BEFORE = "before"; // energy that the counter had when the exporter started
const TERMS = {
  processes: "Used by the processes in the table",
  retired: "Used by processes that are no longer listed",
  idle: "Used while no process was on the GPU",
  unattributed: "Without an owner",
};

// Rows on a MIG instance are also on its GPU.
const isOn = (use, device) => (device.parent_uuid ? use.uuid : use.gpu_uuid) === device.uuid;

// The parts of a device's memory: owners by size, then memory without an owner.
function partsOf(device, snapshot) {
  const listed = isListed(snapshot) ? snapshot.processes.filter((process) => process.active !== false) : snapshot.containers;
  const known = byOwner(listed, device, "memory_bytes");
  const inferred = byOwner(snapshot.containers, device, "inferred_bytes");
  const { known_bytes: all, unknown_bytes: unknown, overhead_bytes: overhead, reserved_bytes: reserved, system_bytes: system } =
    device.memory;
  return [
    ...greatest("known", known),
    ...greatest("inferred", inferred),
    { kind: "others", owner: "processes without a row", size: (all ?? 0) - sizeOf(known) },
    { kind: "system", owner: "rest of the system", size: system },
    { kind: "overhead", owner: "contexts", size: overhead },
    { kind: "unknown", owner: "unknown", size: (unknown ?? 0) - sizeOf(inferred) },
    { kind: "reserved", owner: "reserved", size: reserved },
  ].filter((part) => part.size > 0);
}

const sizeOf = (parts) => parts.reduce((sum, part) => sum + part.size, 0);

// An owner may use several MIG instances of a GPU.
function byOwner(uses, device, field) {
  const sizes = new Map();
  for (const use of uses) {
    if (isOn(use, device) && use[field]) sizes.set(use.owner, (sizes.get(use.owner) ?? 0) + use[field]);
  }
  return [...sizes].map(([owner, size]) => ({ owner, size }));
}

// The largest parts by name and the others combined: a thousand slivers are not readable.
function greatest(kind, parts) {
  const order = [...parts].sort((a, b) => b.size - a.size || (a.owner < b.owner ? -1 : 1));
  const named = order.slice(0, NAMED).map((part) => ({ kind, ...part }));
  const others = order.slice(NAMED);
  if (!others.length) return named;
  return [...named, { kind, owner: plural(others.length, "other", "others"), size: sizeOf(others), several: true }];
}

class MemoryBar {
  constructor(title) {
    this.title = el("span", { text: title });
    this.size = el("data");
    this.bar = el("div", { class: "bar", role: "img" });
    this.legend = el("ul", { class: "legend" });
    this.free = el("span", { class: "free" });
    this.node = el("div", { class: "memory" }, el("p", { class: "line" }, this.title, this.size), this.bar, this.legend);
    this.parts = new Map();
  }

  update(device, snapshot) {
    const { total_bytes: all, used_bytes: used, free_bytes: free } = device.memory;
    tell(this.size, used, bytesOf(used, all));
    if (device.memory.system_bytes !== null) say(this.title, "Memory of the system");
    const parts = partsOf(device, snapshot);
    const names = parts.map((part) => `${part.owner}${part.kind === "inferred" ? ", inferred" : ""}: ${bytes(part.size)}`);
    mark(this.bar, "aria-label", `Memory: ${names.join("; ") || "empty"}; free: ${bytes(free)}`);
    const made = parts.map((part) => this.part(part));
    grow(this.free, all ? Math.max(0, all - sizeOf(parts)) / all : 1);
    parts.forEach((part, index) => grow(made[index].segment, all ? part.size / all : 0));
    arrange(this.bar, [...made.map((part) => part.segment), this.free]);
    arrange(this.legend, made.map((part) => part.item));
    const keys = new Set(parts.map(keyOf));
    for (const key of this.parts.keys()) if (!keys.has(key)) this.parts.delete(key);
  }

  part(part) {
    const key = keyOf(part);
    if (!this.parts.has(key)) {
      const [swatch, name, size] = [el("span"), el("span", { class: "name" }), el("data")];
      this.parts.set(key, { segment: el("span"), item: el("li", {}, swatch, name, size), name, size, swatch });
    }
    const made = this.parts.get(key);
    const look = `${part.kind} ${isOwned(part) ? colour(part.owner) : ""}`;
    mark(made.segment, "class", look);
    mark(made.segment, "title", `${part.owner}: ${bytes(part.size)}${part.kind === "inferred" ? " (inferred)" : ""}`);
    mark(made.swatch, "class", `swatch ${look}`);
    say(made.name, nameOf(part));
    tell(made.size, part.size, bytes(part.size));
    return made;
  }
}

const keyOf = (part) => `${part.kind} ${part.several ? "" : part.owner}`;
const isOwned = (part) => (part.kind === "known" || part.kind === "inferred") && !part.several;
const nameOf = (part) => (isOwned(part) || part.several ? part.owner : part.kind);
const grow = (node, share) => {
  const wanted = share.toFixed(5);
  if (node.dataset.share !== wanted) node.dataset.share = node.style.flexGrow = wanted;
};

class Meter {
  constructor(title, show) {
    this.value = el("data");
    this.limit = el("span", { class: "of" });
    this.chart = new Chart(title, show);
    this.node = el("div", { class: "meter" },
      el("p", { class: "line" }, el("span", { text: title }), this.limit),
      el("p", { class: "big" }, this.value), this.chart.plot);
    this.show = show;
  }

  update(value, top, limit, { times, values, ...span }) {
    tell(this.value, value, this.show(value));
    say(this.limit, limit);
    this.chart.draw(times, [{ values: values ?? [] }], { top, ...span });
  }
}

class Card {
  constructor(gpu) {
    const model = el("span", { class: "model" }, el("span", { class: "vendor", text: gpu.name.match(/^NVIDIA /)?.[0] ?? "" }),
      gpu.name.replace(/^NVIDIA /, ""));
    this.about = `GPU ${gpu.gpu}`;
    this.toggle = el("button", { class: "toggle", type: "button", onclick: () => this.flip() });
    this.title = el("h3", { title: gpu.name }, this.toggle, el("span", { class: "which", text: this.about }), model);
    this.badges = el("ul", { class: "badges" });
    this.reason = el("p", { class: "reason" });
    this.idle = new IdleList();
    this.memory = new MemoryBar("Memory");
    this.busy = new Meter("Utilization", percent);
    this.power = new Meter("Power", watts);
    this.heat = new Meter("Temperature", celsius);
    this.ledger = el("p", { class: "ledger" });
    this.before = el("data", { "data-part": BEFORE });
    this.earlier = el("p", { class: "earlier" }, "The GPU's counter also has ", this.before,
      " from before gpuledger started. This is normal: who used them is not known.");
    this.sums = {};
    this.isOpen = false;
    this.instances = new Map();
    this.inside = el("div", { class: "instances" });
    this.node = el("article", { class: "card", "data-uuid": gpu.uuid, "aria-label": `GPU ${gpu.gpu} ${gpu.name}` },
      el("header", {}, this.title, this.badges), this.reason, this.idle.node, this.memory.node, this.inside,
      el("div", { class: "meters" }, this.busy.node, this.power.node, this.heat.node), this.ledger, this.earlier);
    this.node.addEventListener("click", (event) => this.isCompact && isPlainClick(event) && this.flip());
    this.ledgerParts();
  }

  flip() {
    this.isOpen = !this.isOpen;
    this.look();
  }

  look() {
    const isRow = this.isCompact && !this.isOpen;
    mark(this.node, "class", `card${this.isUp ? "" : " down"}${this.isCompact ? " compact" : ""}${isRow ? " row" : ""}`);
    this.toggle.hidden = !this.isCompact;
    mark(this.toggle, "aria-expanded", String(this.isOpen));
    mark(this.toggle, "aria-label", `${this.isOpen ? "Hide" : "Show"} details of ${this.about}`);
  }

  ledgerParts() {
    this.sums.since = el("data", { "data-part": "since" });
    this.ledger.append(el("span", { class: "whole", title: "Measured by the hardware since gpuledger started" }, "Energy ", this.sums.since));
    Object.entries(TERMS).forEach(([name, title], index) => {
      this.sums[name] = el("data", { "data-part": name });
      this.ledger.append(index ? " + " : " = ", el("span", { title }, this.sums[name], ` ${name}`));
    });
  }

  update(gpu, snapshot, past, { seconds, isCompact }) {
    Object.assign(this, { isUp: gpu.up, isCompact });
    this.look();
    const slowed = [...new Set(gpu.slowed_by.map((name) => SLOWED[name]).filter(Boolean))];
    const idle = idleOn(gpu, snapshot);
    const unused = `allocated, not used${idle.length ? ` for ${duration(snapshot.time - idle[0].idle_since)}` : ""}`;
    const badges = [
      ...(gpu.up ? [] : [["down", "bad"]]),
      ...slowed.map((name) => [name, name === "power cap" ? "" : "bad"]),
      ...(gpu.mig_enabled ? [["MIG", ""]] : []),
      ...(gpu.up && gpu.in_use === false ? [gpu.allocated_to.length ? [unused, ""] : ["idle", "quiet"]] : []),
    ];
    while (this.badges.children.length > badges.length) this.badges.lastChild.remove();
    while (this.badges.children.length < badges.length) this.badges.append(el("li"));
    badges.forEach(([text, kind], index) => {
      say(this.badges.children[index], text);
      mark(this.badges.children[index], "class", `badge ${kind}`);
      mark(this.badges.children[index], "title", text === unused ? `Allocated to ${gpu.allocated_to.join(", ")}` : "");
    });
    this.reason.hidden = gpu.up;
    say(this.reason, gpu.reason);
    this.idle.update(idle, snapshot);
    this.memory.update(gpu, snapshot);
    this.inner(snapshot.gpus.filter((device) => device.parent_uuid === gpu.uuid), snapshot);
    const row = past.gpus.rows.get(gpu.uuid) ?? {};
    const points = isCompact && !this.isOpen ? FEW_POINTS : undefined;
    const series = (values) => ({ times: past.gpus.times, values, seconds, points });
    const limits = gpu.temperature_limits_celsius;
    this.busy.update(gpu.utilization_ratio, 1, "", series(row.utilization_ratio));
    this.power.update(gpu.power_watts, gpu.power_limit_watts,
      gpu.power_limit_watts === null ? "" : `limit ${watts(gpu.power_limit_watts)}`, series(row.power_watts));
    this.heat.update(gpu.temperatures_celsius.gpu ?? null, limits.slowdown ?? 100,
      limits.slowdown === undefined ? "" : `limit ${celsius(limits.slowdown)}`, series(row.temperature_celsius));
    this.balance(gpu);
  }

  inner(instances, snapshot) {
    const bars = instances.map((instance) => {
      const { uuid, mig_profile: profile } = instance;
      if (!this.instances.has(uuid)) this.instances.set(uuid, new MemoryBar(profile || "MIG"));
      const bar = this.instances.get(uuid);
      bar.update(instance, snapshot);
      return bar.node;
    });
    arrange(this.inside, bars);
  }

  // Terms in one unit that add up to the energy since the exporter started.
  balance(gpu) {
    const isKnown = gpu.energy !== null && gpu.energy.joules !== null;
    this.ledger.hidden = !isKnown;
    const before = gpu.energy?.unattributed_joules[BEFORE] ?? 0;
    this.earlier.hidden = !isKnown || before <= 0;
    if (!isKnown) return;
    const reasons = Object.entries(gpu.energy.unattributed_joules).filter(([reason]) => reason !== BEFORE);
    const values = [gpu.energy.processes_joules, gpu.energy.retired_joules, gpu.energy.idle_joules,
      reasons.reduce((total, [, value]) => total + value, 0)];
    const { sum, parts } = addends("joules", values);
    tell(this.sums.since, values.reduce((total, value) => total + value, 0), sum);
    Object.keys(TERMS).forEach((name, index) => tell(this.sums[name], values[index], parts[index]));
    tell(this.before, before, joules(before));
    const why = reasons.map(([reason, value]) => `${reason}: ${joules(value)}`);
    mark(this.sums.unattributed, "title", why.join(", ") || null);
  }
}

export class Cards {
  constructor() {
    this.made = new Map();
    const titles = ["GPU", "Memory", "Utilization", "Power", "Temp."];
    this.heads = el("div", { class: "heads", "aria-hidden": "true" }, ...titles.map((text) => el("span", { text })));
  }

  update(snapshot, past, seconds) {
    const gpus = snapshot.gpus.filter((gpu) => !gpu.parent_uuid);
    const isCompact = gpus.length >= MANY;
    const nodes = gpus.map((gpu) => {
      if (!this.made.has(gpu.uuid)) this.made.set(gpu.uuid, new Card(gpu));
      const card = this.made.get(gpu.uuid);
      card.update(gpu, snapshot, past, { seconds, isCompact });
      return card.node;
    });
    const uuids = new Set(gpus.map((gpu) => gpu.uuid));
    for (const uuid of this.made.keys()) if (!uuids.has(uuid)) this.made.delete(uuid);
    arrange(find("cards"), isCompact ? [this.heads, ...nodes] : nodes);
    mark(find("overview"), "data-count", isCompact ? "many" : "one");
  }
}
