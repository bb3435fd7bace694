// From a reading to the rows of the table: pure, no page in it.

import { joules } from "./format.js";

const MEASURED = "exclusive"; // all else is estimated
const METHODS = {
  exclusive: "measured: it was alone on the GPU",
  edge: "estimated: alone, but came or left between two readings",
  gap: "estimated: used while the exporter was down",
  parked: "estimated: an equal part of what the GPU needs with nobody working",
  fingerprint: "estimated: by what it looks like when it is alone",
  sm_time: "estimated: by its time on the compute engine",
  mps: "estimated: an equal part of its MPS server's",
  mig: "estimated: an equal part of its MIG instance's",
};

// How each part of a row's energy is known, greatest first.
export function methodsOf(row) {
  const parts = Object.entries(row.methods).sort(([, a], [, b]) => b - a);
  return parts.map(([method, value]) => `${joules(value)} ${METHODS[method] ?? method}`);
}

const total = (parts) => Object.values(parts).reduce((sum, part) => sum + part, 0);

export function rowsOf(picture) {
  const rows = picture.processes.map((process) => ({
    key: `${process.pid}-${process.start_time}@${process.uuid}`,
    owner: process.owner,
    name: process.pod || process.container || process.job || process.unit || process.process_name || `pid ${process.pid}`,
    parts: [process.namespace, process.pod && process.container, `${process.process_name || "?"} ${process.pid}`,
      process.active === false && "has left"],
    namespace: process.namespace,
    pod: process.pod,
    container: process.container || process.container_id.slice(0, 12),
    user: process.user,
    gpu: process.gpu,
    mig: process.uuid !== process.gpu_uuid,
    gone: process.active === false,
    memory: process.active === false ? null : process.memory_bytes,
    inferred: false,
    sm: process.sm_ratio,
    watts: process.watts,
    joules: total(process.joules),
    methods: process.joules,
    told: process,
  }));
  for (const container of picture.containers) {
    if (!container.inferred_bytes) continue;
    rows.push({
      key: `${container.container_id || container.pod_uid + container.container}@${container.uuid}`,
      owner: container.owner,
      name: container.pod || container.owner,
      parts: [container.namespace, container.pod && container.container, "not listed by the driver"],
      namespace: container.namespace,
      pod: container.pod,
      container: container.container || container.container_id.slice(0, 12),
      user: container.user,
      gpu: container.gpu,
      mig: container.uuid !== container.gpu_uuid,
      gone: false,
      memory: container.inferred_bytes,
      inferred: true,
      sm: null,
      watts: null,
      joules: null,
      methods: {},
      told: container,
    });
  }
  for (const row of rows) {
    row.measured = row.methods[MEASURED] ?? 0;
    row.how = how(row);
  }
  return rows;
}

function how(row) {
  if (row.inferred) return "inferred";
  if (!row.joules) return "";
  if (row.measured === row.joules) return "measured";
  return row.measured ? "partly measured" : "estimated";
}

// Every word must be somewhere in the row.
export function matching(rows, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const told = row.told;
    const text = [row.owner, told.process_name, told.pid, told.user, told.image, told.workload, told.unit, told.job,
      told.runtime, told.container_id, `gpu${row.gpu}`, row.how].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const VALUES = {
  name: (row) => `${row.name} ${row.owner}`.toLowerCase(),
  gpu: (row) => row.gpu,
  memory: (row) => row.memory,
  sm: (row) => row.sm,
  watts: (row) => row.watts,
  joules: (row) => row.joules,
  how: (row) => row.how,
};

const inOrder = (left, right) => (left.key < right.key ? -1 : 1);

// What is not known comes last, whichever way; equals stay in one order, so that nothing dances.
export function sorted(rows, { column, descending }) {
  const way = descending ? -1 : 1;
  const valued = rows.map((row) => ({ row, value: VALUES[column](row) }));
  const unknown = ({ value }) => value === null || value === "";
  valued.sort((left, right) => {
    if (unknown(left) || unknown(right)) return unknown(left) - unknown(right) || inOrder(left.row, right.row);
    if (left.value === right.value) return inOrder(left.row, right.row);
    return left.value < right.value ? -way : way;
  });
  return valued.map(({ row }) => row);
}

export function sumOf(rows, key, name) {
  const sum = (of) => rows.reduce((so, row) => (of(row) === null ? so : (so ?? 0) + of(row)), null);
  const gpus = new Set(rows.map((row) => row.gpu));
  const one = {
    key, name, rows, owner: name, gpus,
    gpu: gpus.size === 1 ? rows[0].gpu : null,
    memory: sum((row) => row.memory),
    sm: gpus.size === 1 ? sum((row) => row.sm) : null,
    watts: sum((row) => row.watts),
    joules: sum((row) => row.joules),
    measured: sum((row) => row.measured) ?? 0,
    inferred: rows.length > 0 && rows.every((row) => row.inferred),
  };
  one.how = how(one);
  return one;
}

const GROUPS = {
  namespace: (row) => row.namespace,
  pod: (row) => row.pod && `${row.namespace}/${row.pod}`,
  container: (row) => (row.container || row.pod ? row.owner : ""),
  user: (row) => row.user,
  gpu: (row) => `GPU ${row.gpu}`,
};

export function grouped(rows, group) {
  const groups = new Map();
  for (const row of rows) {
    const name = GROUPS[group](row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return [...groups].map(([name, of]) => sumOf(of, `group ${name}`, name || `no ${group}`));
}
