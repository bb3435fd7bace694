// The last ten minutes: fetched once, then continued with each snapshot.

const LENGTH = 600;
const EARLY = 0.95;

class Series {
  constructor(key, columns, series) {
    this.key = key;
    this.columns = columns;
    this.step = series.step_seconds;
    this.times = series.times;
    this.rows = new Map(series.rows.map((row) => [row[key], row]));
  }

  add(time, rows) {
    const last = this.times.at(-1) ?? 0;
    if (time < last + this.step * EARLY) return;
    this.times.push(time);
    for (const [name, row] of rows) {
      if (!this.rows.has(name)) {
        const empty = () => new Array(this.times.length - 1).fill(null);
        this.rows.set(name, Object.fromEntries(this.columns.map((column) => [column, empty()])));
      }
      const values = this.rows.get(name);
      for (const column of this.columns) values[column].push(row[column]);
    }
    const old = this.times.filter((moment) => moment < time - LENGTH).length;
    this.times.splice(0, old);
    for (const [name, row] of this.rows) {
      if (!rows.has(name)) for (const column of this.columns) row[column].push(null);
      for (const column of this.columns) row[column].splice(0, old);
      if (this.columns.every((column) => row[column].every((value) => value === null))) this.rows.delete(name);
    }
  }
}

const GPU = ["utilization_ratio", "memory_used_bytes", "power_watts", "temperature_celsius"];
const OWNER = ["memory_bytes", "watts"];
const EMPTY = { gpus: { step_seconds: 1, times: [], rows: [] }, owners: { step_seconds: 10, times: [], rows: [] } };

export class Past {
  constructor(past = EMPTY) {
    this.gpus = new Series("uuid", GPU, past.gpus);
    this.owners = new Series("owner", OWNER, past.owners);
  }

  // Whether the gap before this snapshot is so long that the history must be fetched again.
  misses(snapshot) {
    const last = this.gpus.times.at(-1);
    return last === undefined || snapshot.time < last || snapshot.time - last > 5 * this.gpus.step + 5;
  }

  add(snapshot) {
    this.gpus.add(snapshot.time, new Map(snapshot.gpus.filter((gpu) => gpu.up).map((gpu) => [gpu.uuid, {
      utilization_ratio: gpu.utilization_ratio,
      memory_used_bytes: gpu.memory.used_bytes,
      power_watts: gpu.power_watts,
      temperature_celsius: gpu.temperatures_celsius.gpu ?? null,
    }])));
    const owners = new Map();
    const outside = snapshot.processes.filter((process) => !process.container_id && process.active !== false);
    for (const use of [...snapshot.containers, ...outside]) {
      const sum = owners.get(use.owner) ?? { memory_bytes: null, watts: null };
      for (const held of [use.memory_bytes, use.inferred_bytes ?? null]) {
        if (held !== null) sum.memory_bytes = (sum.memory_bytes ?? 0) + held;
      }
      if (use.watts !== null) sum.watts = (sum.watts ?? 0) + use.watts;
      owners.set(use.owner, sum);
    }
    this.owners.add(snapshot.time, owners);
  }
}
