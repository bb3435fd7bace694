// A card for each GPU, which includes its MIG instances.

import { Chart } from "./chart.js";
import { colour } from "./colours.js";
import { arrange, el, find, mark, say, tell } from "./dom.js";
import { bytes, celsius, joules, percent, plural, watts } from "./format.js";
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

// Rows on a MIG instance are also on its GPU.
const isOn = (use, device) => (device.parent_uuid ? use.uuid : use.gpu_uuid) === device.uuid;

// The parts of a device's memory: owners by size, then memory without an owner.
function partsOf(device, snapshot) {
  const listed = isListed(snapshot) ? snapshot.processes.filter((process) => process.active !== false) : snapshot.containers;
  const known = byOwner(listed, device, "memory_bytes");
  const inferred = byOwner(snapshot.containers, device, "inferred_bytes");
  const { known_bytes: all, unknown_bytes: unknown, overhead_bytes: overhead, reserved_bytes: reserved } = device.memory;
  return [
    ...greatest("known", known),
    ...greatest("inferred", inferred),
    { kind: "others", owner: "processes without a row", size: (all ?? 0) - sizeOf(known) },
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
    tell(this.size, used, `${bytes(used)} of ${bytes(all)}`);
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
    this.node = el("div", { class: "meter" }, el("p", { class: "line" }, el("span", { text: title })),
      el("p", { class: "big" }, this.value, this.limit), this.chart.node);
    this.show = show;
  }

  update(value, top, limit, past, values) {
    tell(this.value, value, this.show(value));
    say(this.limit, limit);
    this.chart.draw(past.times, values ?? [], top);
  }
}

class Card {
  constructor(gpu) {
    this.title = el("h3", {}, el("span", { text: `GPU ${gpu.gpu}` }), el("span", { class: "model", text: gpu.name }));
    this.badges = el("ul", { class: "badges" });
    this.reason = el("p", { class: "reason" });
    this.memory = new MemoryBar("Memory");
    this.busy = new Meter("Utilization", percent);
    this.power = new Meter("Power", watts);
    this.heat = new Meter("Temperature", celsius);
    this.ledger = el("p", { class: "ledger" });
    this.sums = {};
    this.instances = new Map();
    this.inside = el("div", { class: "instances" });
    this.node = el("article", { class: "card", "data-uuid": gpu.uuid, "aria-label": `GPU ${gpu.gpu} ${gpu.name}` },
      el("header", {}, this.title, this.badges), this.reason, this.memory.node, this.inside,
      el("div", { class: "meters" }, this.busy.node, this.power.node, this.heat.node), this.ledger);
    this.ledgerParts();
  }

  ledgerParts() {
    const part = (name, title) => {
      this.sums[name] = el("data", { "data-part": name });
      return el("span", { title }, this.sums[name], ` ${name}`);
    };
    this.sums.device = el("data", { "data-part": "device" });
    const whole = el("span", { class: "whole", title: "Measured by the hardware" }, "Energy ", this.sums.device);
    this.ledger.append(whole, " = ",
      part("processes", "Used by the processes in the table"), " + ",
      part("retired", "Used by processes that are no longer listed"), " + ",
      part("idle", "Used while no process was on the GPU"), " + ",
      part("unattributed", "Without an owner, by reason"));
  }

  update(gpu, snapshot, past) {
    mark(this.node, "class", gpu.up ? "card" : "card down");
    const slowed = [...new Set(gpu.slowed_by.map((name) => SLOWED[name]).filter(Boolean))];
    const badges = [
      ...(gpu.up ? [] : [["down", "bad"]]),
      ...slowed.map((name) => [name, name === "power cap" ? "" : "bad"]),
      ...(gpu.mig_enabled ? [["MIG", ""]] : []),
      ...(gpu.up && gpu.in_use === false ? [["idle", "quiet"]] : []),
    ];
    while (this.badges.children.length > badges.length) this.badges.lastChild.remove();
    while (this.badges.children.length < badges.length) this.badges.append(el("li"));
    badges.forEach(([text, kind], index) => {
      say(this.badges.children[index], text);
      mark(this.badges.children[index], "class", `badge ${kind}`);
    });
    this.reason.hidden = gpu.up;
    say(this.reason, gpu.reason);
    this.memory.update(gpu, snapshot);
    this.inner(snapshot.gpus.filter((device) => device.parent_uuid === gpu.uuid), snapshot);
    const row = past.gpus.rows.get(gpu.uuid) ?? {};
    const limits = gpu.temperature_limits_celsius;
    this.busy.update(gpu.utilization_ratio, 1, "", past.gpus, row.utilization_ratio);
    this.power.update(gpu.power_watts, gpu.power_limit_watts,
      gpu.power_limit_watts === null ? "" : `of ${watts(gpu.power_limit_watts)}`, past.gpus, row.power_watts);
    this.heat.update(gpu.temperatures_celsius.gpu ?? null, limits.slowdown ?? 100,
      limits.slowdown === undefined ? "" : `slows down at ${celsius(limits.slowdown)}`, past.gpus, row.temperature_celsius);
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

  balance(gpu) {
    this.ledger.hidden = gpu.energy === null || gpu.energy.joules === null;
    if (this.ledger.hidden) return;
    const sum = (parts) => Object.values(parts).reduce((total, part) => total + part, 0);
    const parts = {
      device: gpu.energy.joules,
      processes: gpu.energy.processes_joules,
      retired: gpu.energy.retired_joules,
      idle: gpu.energy.idle_joules,
      unattributed: sum(gpu.energy.unattributed_joules),
    };
    for (const [name, value] of Object.entries(parts)) tell(this.sums[name], value, joules(value));
    const why = Object.entries(gpu.energy.unattributed_joules).map(([reason, value]) => `${reason}: ${joules(value)}`);
    mark(this.sums.unattributed, "title", why.join(", ") || null);
  }
}

export class Cards {
  constructor() {
    this.made = new Map();
  }

  update(snapshot, past) {
    const gpus = snapshot.gpus.filter((gpu) => !gpu.parent_uuid);
    const nodes = gpus.map((gpu) => {
      if (!this.made.has(gpu.uuid)) this.made.set(gpu.uuid, new Card(gpu));
      const card = this.made.get(gpu.uuid);
      card.update(gpu, snapshot, past);
      return card.node;
    });
    const uuids = new Set(gpus.map((gpu) => gpu.uuid));
    for (const uuid of this.made.keys()) if (!uuids.has(uuid)) this.made.delete(uuid);
    arrange(find("cards"), nodes);
    mark(find("cards"), "data-count", Math.min(3, gpus.length));
  }
}
