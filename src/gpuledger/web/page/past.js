// The last hour: fetched once, then continued with each snapshot.

const LENGTH = 3600;
const RECENT = 600; // older points are means over a longer step
const EARLY = 0.95;
const NO_OWNER = ""; // the row of idle and unattributed power

const mean = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

class Series {
  constructor(key, columns, olderStep, series) {
    Object.assign(this, { key, columns, olderStep, step: series.step_seconds, times: series.times });
    this.rows = new Map(series.rows.map((row) => [row[key], row]));
    this.thinned = this.times.filter((time) => time <= this.times.at(-1) - RECENT).length;
  }

  // Whether a step has passed since the last point.
  isDue(time) {
    return time >= (this.times.at(-1) ?? 0) + this.step * EARLY;
  }

  add(time, rows) {
    this.times.push(time);
    for (const name of rows.keys()) {
      if (this.rows.has(name)) continue;
      this.rows.set(name, Object.fromEntries(this.columns.map((column) => [column, new Array(this.times.length - 1).fill(null)])));
    }
    for (const [name, row] of this.rows) {
      for (const column of this.columns) row[column].push(rows.get(name)?.[column] ?? null);
    }
    this.thin(time);
    this.replace(0, this.times.filter((moment) => moment < time - LENGTH).length, () => []);
    for (const [name, row] of this.rows) {
      if (this.columns.every((column) => row[column].every((value) => value === null))) this.rows.delete(name);
    }
  }

  // Combine the points that are no longer recent once they fill a longer step.
  thin(now) {
    const end = this.times.filter((moment) => moment <= now - RECENT).length;
    if (end - this.thinned < Math.max(2, Math.round(this.olderStep / this.step))) return;
    const last = this.times[end - 1];
    this.replace(this.thinned, end - this.thinned, (values) => [mean(values)]);
    this.times[this.thinned] = last;
    this.thinned += 1;
  }

  replace(start, count, means) {
    if (!count) return;
    this.times.splice(start, count, ...means(this.times.slice(start, start + count)));
    for (const row of this.rows.values()) {
      for (const column of this.columns) row[column].splice(start, count, ...means(row[column].slice(start, start + count)));
    }
    if (start < this.thinned) this.thinned = Math.max(0, this.thinned - count);
  }
}

const GPU = ["utilization_ratio", "memory_used_bytes", "power_watts", "temperature_celsius"];
const OWNER = ["memory_bytes", "watts"];
const EMPTY = {
  gpus: { step_seconds: 1, times: [], rows: [] },
  owners: { step_seconds: 5, times: [], rows: [], unowned_watts: [] },
};
const sum = (parts) => Object.values(parts).reduce((total, part) => total + part, 0);

// Idle and unattributed energy of a GPU since the exporter started.
function unownedJoules({ energy }) {
  const { before = 0, ...reasons } = energy.unattributed_joules;
  return energy.idle_joules + sum(reasons);
}

export class Past {
  constructor(past = EMPTY) {
    const { unowned_watts: watts, ...owners } = past.owners;
    const unowned = { owner: NO_OWNER, memory_bytes: watts.map(() => null), watts };
    this.gpus = new Series("uuid", GPU, 10, past.gpus);
    this.owners = new Series("owner", OWNER, 30, { ...owners, rows: [unowned, ...owners.rows] });
    this.joules = null; // at the last step: by GPU, without an owner
  }

  get unowned() {
    return this.owners.rows.get(NO_OWNER)?.watts ?? [];
  }

  // Whether the gap before this snapshot is so long that the history must be fetched again.
  misses(snapshot) {
    const last = this.gpus.times.at(-1);
    return last === undefined || snapshot.time < last || snapshot.time - last > 5 * this.gpus.step + 5;
  }

  add(snapshot) {
    if (this.gpus.isDue(snapshot.time)) this.addGpus(snapshot);
    if (this.owners.isDue(snapshot.time)) this.addOwners(snapshot);
    else this.joules ??= this.unownedByGpu(snapshot);
  }

  addGpus(snapshot) {
    this.gpus.add(snapshot.time, new Map(snapshot.gpus.filter((gpu) => gpu.up).map((gpu) => [gpu.uuid, {
      utilization_ratio: gpu.utilization_ratio,
      memory_used_bytes: gpu.memory.used_bytes,
      power_watts: gpu.power_watts,
      temperature_celsius: gpu.temperatures_celsius.gpu ?? null,
    }])));
  }

  addOwners(snapshot) {
    const owners = new Map([[NO_OWNER, { memory_bytes: null, watts: this.unownedWatts(snapshot) }]]);
    const outside = snapshot.processes.filter((process) => !process.container_id && process.active !== false);
    for (const use of [...snapshot.containers, ...outside]) {
      const total = owners.get(use.owner) ?? { memory_bytes: null, watts: null };
      for (const held of [use.memory_bytes, use.inferred_bytes ?? null]) {
        if (held !== null) total.memory_bytes = (total.memory_bytes ?? 0) + held;
      }
      if (use.watts !== null) total.watts = (total.watts ?? 0) + use.watts;
      owners.set(use.owner, total);
    }
    this.owners.add(snapshot.time, owners);
  }

  unownedByGpu(snapshot) {
    const metered = snapshot.gpus.filter((gpu) => gpu.up && gpu.energy && gpu.energy.joules !== null);
    return { time: snapshot.time, byGpu: new Map(metered.map((gpu) => [gpu.uuid, unownedJoules(gpu)])) };
  }

  unownedWatts(snapshot) {
    const [before, now] = [this.joules, this.unownedByGpu(snapshot)];
    this.joules = now;
    const used = [...now.byGpu].filter(([uuid]) => before?.byGpu.has(uuid)).map(([uuid, value]) => value - before.byGpu.get(uuid));
    return used.length ? Math.max(0, sum(used)) / (now.time - before.time) : null;
  }
}
