// The page: receives snapshots and draws at most once per frame. The view is stored in the address.

import { Cards } from "./cards.js";
import { learn } from "./colours.js";
import { el, find, mark, say } from "./dom.js";
import { NONE, bytesOf, clock, count, watts } from "./format.js";
import { showHealth } from "./health.js";
import { Live } from "./live.js";
import { Past } from "./past.js";
import { Power } from "./power.js";
import { showServers } from "./servers.js";
import { Table } from "./table.js";

const DEFAULTS = { column: "memory", descending: true, filter: "", group: "", range: "" };
const COLUMNS = new Set(["name", "gpu", "memory", "sm", "watts", "joules", "asked", "how"]);
const GROUPS = new Set(["", "namespace", "pod", "container", "user", "gpu"]);
const RANGES = ["1", "10", "60"]; // minutes
const NARROW = matchMedia("(max-width: 640px)");
const THEMES = ["auto", "light", "dark"];

const view = { ...DEFAULTS };
let past = new Past();
let isFetching = false;
let newest = null;
let isDrawPending = false;

// -- the view in the address

function readView() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const sort = parameters.get("sort") ?? `-${DEFAULTS.column}`;
  const column = sort.replace(/^-/, "");
  const group = parameters.get("group") ?? "";
  const range = parameters.get("range") ?? "";
  Object.assign(view, {
    column: COLUMNS.has(column) ? column : DEFAULTS.column,
    descending: sort.startsWith("-"),
    filter: parameters.get("filter") ?? "",
    group: GROUPS.has(group) ? group : "",
    range: RANGES.includes(range) ? range : "",
  });
}

function writeView() {
  const parameters = new URLSearchParams();
  if (view.column !== DEFAULTS.column || view.descending !== DEFAULTS.descending) {
    parameters.set("sort", `${view.descending ? "-" : ""}${view.column}`);
  }
  if (view.filter) parameters.set("filter", view.filter);
  if (view.group) parameters.set("group", view.group);
  if (view.range) parameters.set("range", view.range);
  history.replaceState(null, "", `${parameters}` ? `#${parameters}` : location.pathname + location.search);
}

readView();
const cards = new Cards();
const power = new Power();
const table = new Table(view, writeView);
addEventListener("hashchange", () => {
  readView();
  if (newest) draw();
});

// On a phone the table comes first.
function place() {
  const [gpus, owners] = [find("gpus"), find("owners")];
  if (NARROW.matches) gpus.before(owners);
  else gpus.after(owners);
}
NARROW.addEventListener("change", place);
place();

// -- the time that the charts show

// Until a range is chosen: ten minutes, or one minute while there is little more.
function range() {
  const times = past.gpus.times;
  return view.range || (times.length && times.at(-1) - times[0] > 180 ? "10" : "1");
}

const buttons = RANGES.map((minutes) => el("button", {
  type: "button", text: `${minutes} min`,
  onclick: () => {
    view.range = minutes;
    writeView();
    if (newest) draw();
  },
}));
find("ranges").append(...buttons);

// -- snapshots

function sums(snapshot) {
  const gpus = snapshot.gpus.filter((gpu) => !gpu.parent_uuid);
  const sum = (value) => gpus.reduce((total, gpu) => (value(gpu) === null ? total : (total ?? 0) + value(gpu)), null);
  const up = `${count(gpus.filter((gpu) => gpu.up).length)} of ${count(gpus.length)}`;
  say(find("sum-gpus"), snapshot.driver.up ? up : NONE);
  say(find("sum-power"), watts(sum((gpu) => gpu.power_watts)));
  say(find("sum-memory"), bytesOf(sum((gpu) => gpu.memory.used_bytes), sum((gpu) => gpu.memory.total_bytes)));
  say(find("sum-processes"), count(snapshot.process_count));
}

function draw() {
  isDrawPending = false;
  const snapshot = newest;
  learn(Object.entries(snapshot.colours));
  say(find("node"), snapshot.recording ? "recording" : snapshot.node);
  find("recording").hidden = !snapshot.recording;
  find("own").hidden = !snapshot.viewer;
  find("links").hidden = Boolean(snapshot.viewer); // these pages are closed
  say(find("own"), `Own view of ${snapshot.viewer}: your workloads and their GPUs. Those of other owners are one row.`);
  sums(snapshot);
  showHealth(snapshot);
  const seconds = 60 * range();
  buttons.forEach((button, index) => mark(button, "aria-pressed", String(RANGES[index] === range())));
  cards.update(snapshot, past, seconds);
  power.update(past, seconds);
  showServers(snapshot);
  table.update(snapshot, past, seconds);
  for (const id of ["health", "gpus", "owners"]) find(id).hidden = false;
  mark(document.body, "data-time", snapshot.time);
}

async function fetchPast() {
  isFetching = true;
  try {
    const answer = await fetch("api/v1/history", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const hour = await answer.json();
    learn(hour.owners.rows.map(({ owner, colour }) => [owner, colour]));
    past = new Past(hour);
  } catch {
    // the next snapshot tries again
  }
  isFetching = false;
}

async function show(snapshot) {
  const isFirst = !newest;
  newest = snapshot;
  if (isFirst && document.body.dataset.state === "live") state("live");
  if (past.misses(snapshot) && !isFetching) await fetchPast();
  past.add(newest); // a newer snapshot may have arrived meanwhile
  if (isDrawPending) return;
  isDrawPending = true;
  requestAnimationFrame(draw);
}

// -- the connection

function state(how) {
  const time = newest ? clock(newest.time) : "";
  const words = { live: newest ? "Live" : "Connecting", stale: "No new data", lost: "Connection lost" };
  say(find("state"), words[how]);
  mark(find("state"), "data-state", how);
  const lost = find("lost");
  lost.hidden = how === "live";
  say(lost, {
    live: "",
    stale: `The exporter responds, but its last data is from ${time}. See its log for the reason.`,
    lost: `The exporter does not respond; retrying. ${time ? `This page shows data from ${time}.` : ""}`,
  }[how]);
  mark(document.body, "data-state", how);
}

// -- keys and colours

addEventListener("keydown", (event) => {
  const writing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !writing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    find("filter").focus();
    find("filter").select();
  } else if (event.key === "Escape" && event.target.id === "filter") {
    table.set({ filter: "" });
    event.target.blur();
  }
});

function remembered(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return null; // the browser does not allow storage
  }
}

function theme(name) {
  mark(document.documentElement, "data-theme", name === "auto" ? null : name);
  say(find("theme"), `◐ ${name}`);
  mark(find("theme"), "aria-label", `Theme: ${name}`);
}

let chosen = THEMES.includes(remembered("theme")) ? remembered("theme") : "auto";
theme(chosen);
find("theme").addEventListener("click", () => {
  chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  remembered("theme", chosen);
  theme(chosen);
});

new Live(show, state).start();
