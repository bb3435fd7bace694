// The rows of the table, computed from a snapshot. Pure: does not touch the page.

import { addends, moment, plural } from "./format.js";

const MEASURED = "exclusive"; // every other method estimates
const METHODS = {
  exclusive: "measured: it was alone on the GPU",
  edge: "estimated: alone, but started or ended between two ticks",
  gap: "estimated: used while the exporter was down",
  parked: "estimated: an equal share of the parked power",
  fingerprint: "estimated: by its fingerprint",
  power: "estimated: by its utilization and power",
  sm_time: "estimated: by its SM time",
  mps: "estimated: an equal share of its MPS server",
  mig: "estimated: an equal share of its MIG instance",
};

// The energy of a row by method, largest first, and the sum of the methods.
export function methodsOf(row) {
  const methods = Object.entries(row.methods).sort(([, a], [, b]) => b - a);
  const { sum, parts } = addends("joules", methods.map(([, value]) => value));
  const lines = methods.map(([method], index) => `${parts[index]} ${METHODS[method] ?? method}`);
  return lines.length ? [`Energy ${sum} =`, ...lines.map((line, index) => (index ? `+ ${line}` : line))] : [];
}

const total = (parts) => Object.values(parts).reduce((sum, part) => sum + part, 0);

// Whether the snapshot lists processes; if not, containers represent them.
export const isListed = (snapshot) => snapshot.processes.length > 0 || !snapshot.containers.some((row) => row.processes);

const isMetered = (gpu) => gpu.energy !== null && gpu.energy.joules !== null;

function processRow(process, metered) {
  return {
    key: `${process.pid}-${process.start_time}@${process.uuid}`,
    name: process.owner,
    parts: [`${process.process_name || "?"} ${process.pid}`, process.user, process.active === false && "exited"],
    gone: process.active === false,
    memory: process.active === false ? null : process.memory_bytes,
    ...usage(process, metered),
    ...identity(process),
  };
}

function containerRow(container, about, kind) {
  return {
    key: `${kind} ${container.container_id || container.pod_uid + container.container}@${container.uuid}`,
    name: container.owner,
    parts: [about],
    gone: false,
    ...identity(container),
  };
}

// Processes without a row of their own, in an own view those of others: one row per GPU, so that the sums of the table match the GPUs.
function restRow(gpu, rows, listed, viewer) {
  const own = rows.filter((row) => row.fields.gpu_uuid === gpu.uuid);
  const remaining = (total, value, minimum) => {
    const rest = total === null ? 0 : own.reduce((sum, row) => sum - (value(row) ?? 0), total);
    return rest >= minimum ? rest : null;
  };
  const memory = remaining(gpu.memory.known_bytes, (row) => row.memory, 1);
  // The energy of a container includes its retired processes, so the remainder is unknown.
  const joules = listed && isMetered(gpu) ? remaining(gpu.energy.processes_joules, (row) => row.joules, 0.0005) : null;
  if (memory === null && joules === null) return [];
  return [{
    key: `others@${gpu.uuid}`, name: "others", parts: [viewer ? "workloads of other owners" : "processes without a row"], gone: false, others: true, memory, joules,
    sm: null, watts: null, inferred: false, methods: {},
    ...identity({ gpu: gpu.gpu, uuid: gpu.uuid, gpu_uuid: gpu.uuid, owner: "others" }),
  }];
}

// An allocation without a row of a process, if its owner asked for a part of a GPU or no other owner uses the GPU.
function unusedRows(snapshot, rows) {
  const using = new Set(rows.map((row) => keyOf(row.fields)));
  const idle = new Set(snapshot.gpus.filter((gpu) => gpu.in_use === false).map((gpu) => gpu.uuid));
  return snapshot.allocations
    .filter((allocation) => allocation.state === "no_process" && !using.has(keyOf(allocation))
      && (isPart(allocation) || idle.has(allocation.gpu_uuid)))
    .map((allocation) => ({
      key: `allocation ${allocation.uuid} ${allocation.owner} ${allocation.container_id}`,
      name: allocation.owner,
      parts: ["idle, no process", allocation.idle_since && `since ${moment(allocation.idle_since, snapshot.time)}`],
      gone: false, idle: true, memory: 0, inferred: false, sm: 0, watts: 0, joules: 0, methods: {},
      ...identity(allocation),
    }));
}

const keyOf = (use) => `${use.gpu_uuid} ${use.owner}`;
const isPart = (allocation) => allocation.entitlement && allocation.entitlement !== "device";

// Parts of GPUs that owners asked for, and what they use of them.
function parts(snapshot, rows) {
  const byKey = new Map(snapshot.allocations.filter(isPart).map((allocation) => [keyOf(allocation), allocation]));
  for (const row of rows) {
    row.allocation = row.gone ? undefined : byKey.get(keyOf(row.fields));
    row.asked = askedOf([row]);
  }
}

// GPUs asked for and used; an allocation with several rows counts once.
function askedOf(rows) {
  const known = [...new Set(rows.map((row) => row.allocation))].filter((allocation) => allocation && allocation.asked_ratio !== null);
  if (!known.length) return null;
  const isUsed = known.every((allocation) => allocation.compute_used_ratio !== null);
  return {
    gpus: known.reduce((sum, { asked_ratio: asked }) => sum + asked, 0),
    used: isUsed ? known.reduce((sum, { asked_ratio: asked, compute_used_ratio: used }) => sum + asked * used, 0) : null,
  };
}

function usage(use, metered) {
  const isKnown = metered.has(use.gpu_uuid) || Object.keys(use.joules).length;
  return { inferred: false, sm: use.sm_ratio, watts: use.watts, joules: isKnown ? total(use.joules) : null, methods: use.joules };
}

function identity(use) {
  return {
    owner: use.owner,
    namespace: use.namespace ?? "",
    pod: use.pod ?? "",
    container: use.container || (use.container_id ?? "").slice(0, 12),
    user: use.user ?? "",
    gpu: use.gpu,
    mig: use.uuid !== use.gpu_uuid,
    fields: use,
  };
}

export function rowsOf(snapshot) {
  const metered = new Set(snapshot.gpus.filter(isMetered).map((gpu) => gpu.uuid));
  const listed = isListed(snapshot);
  const rows = snapshot.processes.map((process) => processRow(process, metered));
  if (!listed) {
    for (const container of snapshot.containers) {
      const about = plural(container.processes, "process", "processes");
      const memory = container.memory_bytes;
      rows.push({ ...containerRow(container, about, "container"), memory, ...usage(container, metered) });
    }
  }
  rows.push(...snapshot.gpus.filter((gpu) => !gpu.parent_uuid).flatMap((gpu) => restRow(gpu, rows, listed, snapshot.viewer)));
  for (const container of snapshot.containers) {
    if (!container.inferred_bytes) continue;
    const unknown = { memory: container.inferred_bytes, inferred: true, sm: null, watts: null, joules: null, methods: {} };
    rows.push({ ...containerRow(container, "not listed by the driver", "inferred"), ...unknown });
  }
  rows.push(...unusedRows(snapshot, rows));
  parts(snapshot, rows);
  for (const row of rows) {
    row.measured = row.methods[MEASURED] ?? 0;
    row.how = how(row);
  }
  return rows;
}

function how(row) {
  if (row.inferred) return "memory inferred";
  if (!row.joules || row.others) return "";
  if (row.measured === row.joules) return "energy measured";
  return row.measured ? "energy partly measured" : "energy estimated";
}

// Rows that contain every word of the filter.
export function matching(rows, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const { fields } = row;
    const text = [row.owner, fields.process_name, fields.pid, fields.user, fields.image, fields.workload, fields.unit,
      fields.job, fields.runtime, fields.container_id, `gpu${row.gpu}`, row.how, row.idle && "idle"].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const VALUES = {
  name: (row) => row.owner.toLowerCase(),
  gpu: (row) => row.gpu,
  memory: (row) => row.memory,
  sm: (row) => row.sm,
  watts: (row) => row.watts,
  joules: (row) => row.joules,
  asked: (row) => row.asked?.gpus ?? null,
  how: (row) => row.how,
};

const inOrder = (left, right) => (left.key < right.key ? -1 : 1);

// Unknown values come last in both directions; equal rows keep a stable order.
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
  const sum = (value) => rows.reduce((total, row) => (value(row) === null ? total : (total ?? 0) + value(row)), null);
  const gpus = new Set(rows.map((row) => row.gpu));
  const group = {
    key, name, rows, owner: name, gpus,
    gpu: gpus.size === 1 ? rows[0].gpu : null,
    memory: sum((row) => row.memory),
    sm: gpus.size === 1 ? sum((row) => row.sm) : null,
    watts: sum((row) => row.watts),
    joules: sum((row) => row.joules),
    measured: sum((row) => row.measured) ?? 0,
    asked: askedOf(rows),
    inferred: rows.length > 0 && rows.every((row) => row.inferred),
  };
  group.how = how(group);
  return group;
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
