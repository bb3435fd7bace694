// Idle allocations of a GPU: their owners, since when, their cost in hours and energy, and the command that would free them.

import { arrange, el, say } from "./dom.js";
import { dateTime, duration, joules } from "./format.js";

const STATES = { no_process: "no process on the GPU", parked: "a process without work", low: "hardly any work" };

// The allocations of a GPU and its MIG instances that are idle now, the longest first.
export function idleOn(gpu, snapshot) {
  return snapshot.allocations
    .filter((allocation) => allocation.gpu_uuid === gpu.uuid && allocation.idle_since !== null && STATES[allocation.state])
    .sort((a, b) => a.idle_since - b.idle_since || (a.owner < b.owner ? -1 : 1));
}

export class IdleList {
  constructor() {
    this.node = el("ul", { class: "wasted" });
    this.items = new Map();
  }

  update(idle, snapshot) {
    this.node.hidden = !idle.length;
    arrange(this.node, idle.map((allocation) => this.item(allocation, snapshot.time)));
    const keys = new Set(idle.map(keyOf));
    for (const key of this.items.keys()) if (!keys.has(key)) this.items.delete(key);
  }

  item(allocation, now) {
    const key = keyOf(allocation);
    if (!this.items.has(key)) {
      const [text, command] = [el("span"), el("code")];
      this.items.set(key, { node: el("li", {}, text, command), text, command });
    }
    const { node, text, command } = this.items.get(key);
    const hours = `${(allocation.period_gpu_seconds / 3600).toFixed(2)} GPU hours`;
    const cost = allocation.period_joules === null ? hours : `${hours}, ${joules(allocation.period_joules)}`;
    say(text, `${allocation.owner}: idle for ${duration(now - allocation.idle_since)} (${STATES[allocation.state]}) since `
      + `${dateTime(allocation.idle_since)}, ${cost}${allocation.free_command ? "; to free it: " : ""}`);
    command.hidden = !allocation.free_command;
    say(command, allocation.free_command);
    return node;
  }
}

const keyOf = (allocation) => `${allocation.uuid} ${allocation.owner} ${allocation.container_id}`;
