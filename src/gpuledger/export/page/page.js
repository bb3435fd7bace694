// Puts the page together: readings in, everything drawn once a frame. The view is kept in the address.

import { Cards } from "./cards.js";
import { spanName } from "./chart.js";
import { keep } from "./colours.js";
import { find, mark, say } from "./dom.js";
import { NONE, bytes, clock, count, watts } from "./format.js";
import { showHealth } from "./health.js";
import { Live } from "./live.js";
import { Past } from "./past.js";
import { Table } from "./table.js";

const USUAL = { column: "memory", descending: true, filter: "", group: "" };
const COLUMNS = new Set(["name", "gpu", "memory", "sm", "watts", "joules", "how"]);
const GROUPS = new Set(["", "namespace", "pod", "container", "user", "gpu"]);
const THEMES = ["auto", "light", "dark"];

const view = { ...USUAL };
let past = new Past();
let asked = false;
let newest = null;
let waiting = false;

// -- the view in the address

function readView() {
  const told = new URLSearchParams(location.hash.slice(1));
  const sort = told.get("sort") ?? `-${USUAL.column}`;
  const column = sort.replace(/^-/, "");
  const group = told.get("group") ?? "";
  Object.assign(view, {
    column: COLUMNS.has(column) ? column : USUAL.column,
    descending: sort.startsWith("-"),
    filter: told.get("filter") ?? "",
    group: GROUPS.has(group) ? group : "",
  });
}

function writeView() {
  const told = new URLSearchParams();
  if (view.column !== USUAL.column || view.descending !== USUAL.descending) {
    told.set("sort", `${view.descending ? "-" : ""}${view.column}`);
  }
  if (view.filter) told.set("filter", view.filter);
  if (view.group) told.set("group", view.group);
  history.replaceState(null, "", `${told}` ? `#${told}` : location.pathname + location.search);
}

readView();
const cards = new Cards();
const table = new Table(view, writeView);
addEventListener("hashchange", () => {
  readView();
  table.draw();
});

// -- readings

function sums(picture) {
  const gpus = picture.gpus.filter((gpu) => !gpu.parent_uuid);
  const sum = (of) => gpus.reduce((so, gpu) => (of(gpu) === null ? so : (so ?? 0) + of(gpu)), null);
  const up = `${count(gpus.filter((gpu) => gpu.up).length)} of ${count(gpus.length)}`;
  say(find("sum-gpus"), picture.driver.up ? up : NONE);
  say(find("sum-power"), watts(sum((gpu) => gpu.power_watts)));
  say(find("sum-memory"), `${bytes(sum((gpu) => gpu.memory.used_bytes))} of ${bytes(sum((gpu) => gpu.memory.total_bytes))}`);
  say(find("sum-processes"), count(picture.process_count));
}

function draw() {
  waiting = false;
  const picture = newest;
  keep(new Set([...picture.processes, ...picture.containers].map((one) => one.owner)));
  say(find("node"), picture.recording ? "recording" : picture.node);
  find("recording").hidden = !picture.recording;
  sums(picture);
  showHealth(picture);
  say(find("span"), `charts show the ${spanName(past.gpus.times)}`);
  cards.update(picture, past);
  table.update(picture, past);
  for (const id of ["health", "gpus", "owners"]) find(id).hidden = false;
  mark(document.body, "data-time", picture.time);
}

async function askForPast() {
  asked = true;
  try {
    const answer = await fetch("api/v1/history", { cache: "no-store" });
    if (answer.ok) past = new Past(await answer.json());
  } catch {
    // the next reading asks again
  }
  asked = false;
}

async function show(picture) {
  newest = picture;
  if (past.misses(picture) && !asked) await askForPast();
  past.add(newest); // another may have come meanwhile
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
}

// -- the connection

function state(how) {
  const time = newest ? clock(newest.time) : "";
  const words = { live: "Live", stale: "No new readings", lost: "Connection lost" };
  say(find("state"), words[how]);
  mark(find("state"), "data-state", how);
  const lost = find("lost");
  lost.hidden = how === "live";
  say(lost, {
    live: "",
    stale: `The exporter answers, but its last reading is of ${time}. Its log may say why.`,
    lost: `The exporter does not answer; trying again. ${time ? `What you see is of ${time}.` : ""}`,
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
    return null; // a browser that keeps nothing
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
