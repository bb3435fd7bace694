// From a reading to the rows of the table: pure, no page in it.

import { joules, plural } from "./format.js";

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

// Whether the exporter shows processes one by one; where it does not, containers stand for theirs.
export const isListed = (picture) => picture.processes.length > 0 || !picture.containers.some((one) => one.processes);

const isMetered = (gpu) => gpu.energy !== null && gpu.energy.joules !== null;

function processRow(process, metered) {
  return {
    key: `${process.pid}-${process.start_time}@${process.uuid}`,
    name: process.pod || process.container || process.job || process.unit || process.process_name || `pid ${process.pid}`,
    parts: [process.namespace, process.pod && process.container, `${process.process_name || "?"} ${process.pid}`,
      process.active === false && "has left"],
    gone: process.active === false,
    memory: process.active === false ? null : process.memory_bytes,
    ...used(process, metered),
    ...whose(process),
  };
}

function containerRow(container, about, kind) {
  return {
    key: `${kind} ${container.container_id || container.pod_uid + container.container}@${container.uuid}`,
    name: container.pod || container.owner,
    parts: [container.namespace, container.pod && container.container, about],
    gone: false,
    ...whose(container),
  };
}

// What the driver lists and the exporter does not show one by one: the table's sums are those of the GPUs all the same.
function restRow(gpu, rows, listed) {
  const own = rows.filter((row) => row.told.gpu_uuid === gpu.uuid);
  const left = (all, of, least) => {
    const rest = all === null ? 0 : own.reduce((so, row) => so - (of(row) ?? 0), all);
    return rest >= least ? rest : null;
  };
  const memory = left(gpu.memory.known_bytes, (row) => row.memory, 1);
  // A container's energy has that of its retired processes in it: it says nothing about the rest.
  const joules = listed && isMetered(gpu) ? left(gpu.energy.processes_joules, (row) => row.joules, 0.0005) : null;
  if (memory === null && joules === null) return [];
  return [{
    key: `others@${gpu.uuid}`, name: "others", parts: ["not shown one by one"], gone: false, others: true, memory, joules,
    sm: null, watts: null, inferred: false, methods: {},
    ...whose({ gpu: gpu.gpu, uuid: gpu.uuid, gpu_uuid: gpu.uuid, owner: "others" }),
  }];
}

function used(use, metered) {
  const told = metered.has(use.gpu_uuid) || Object.keys(use.joules).length;
  return { inferred: false, sm: use.sm_ratio, watts: use.watts, joules: told ? total(use.joules) : null, methods: use.joules };
}

function whose(use) {
  return {
    owner: use.owner,
    namespace: use.namespace ?? "",
    pod: use.pod ?? "",
    container: use.container || (use.container_id ?? "").slice(0, 12),
    user: use.user ?? "",
    gpu: use.gpu,
    mig: use.uuid !== use.gpu_uuid,
    told: use,
  };
}

export function rowsOf(picture) {
  const metered = new Set(picture.gpus.filter(isMetered).map((gpu) => gpu.uuid));
  const listed = isListed(picture);
  const rows = picture.processes.map((process) => processRow(process, metered));
  if (!listed) {
    for (const one of picture.containers) {
      const about = plural(one.processes, "process", "processes");
      rows.push({ ...containerRow(one, about, "container"), memory: one.memory_bytes, ...used(one, metered) });
    }
  }
  rows.push(...picture.gpus.filter((gpu) => !gpu.parent_uuid).flatMap((gpu) => restRow(gpu, rows, listed)));
  for (const one of picture.containers) {
    if (!one.inferred_bytes) continue;
    const unknown = { memory: one.inferred_bytes, inferred: true, sm: null, watts: null, joules: null, methods: {} };
    rows.push({ ...containerRow(one, "not listed by the driver", "inferred"), ...unknown });
  }
  for (const row of rows) {
    row.measured = row.methods[MEASURED] ?? 0;
    row.how = how(row);
  }
  return rows;
}

function how(row) {
  if (row.inferred) return "inferred";
  if (!row.joules || row.others) return "";
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
