// Problems with their fixes, and the state of the driver and of the providers of names.

import { arrange, el, find, mark, say, withCode } from "./dom.js";
import { clock } from "./format.js";

const made = new Map();
const LEVELS = { problem: "Problem", warning: "Warning", note: "Note" };

function item(problem) {
  return el("li", { class: problem.level },
    el("strong", {}, el("span", { class: "level", text: LEVELS[problem.level] ?? problem.level }), ` ${problem.about}: `),
    el("span", { text: problem.what }), el("p", { class: "fix" }, ...withCode(problem.fix)));
}

export function showHealth(snapshot) {
  const keys = new Set();
  const nodes = snapshot.problems.map((problem) => {
    const key = JSON.stringify(problem);
    keys.add(key);
    if (!made.has(key)) made.set(key, item(problem));
    return made.get(key);
  });
  for (const key of made.keys()) if (!keys.has(key)) made.delete(key);
  arrange(find("problems"), nodes);
  const driver = snapshot.driver.up
    ? `Driver ${snapshot.driver.driver_version || "?"}, CUDA ${snapshot.driver.cuda_version || "?"}`
    : "The driver cannot be read";
  const providers = snapshot.providers.map(({ name, up, since }) =>
    (up ? `${name} is up` : `${name} has been down since ${clock(since)}`));
  const all = nodes.length || snapshot.viewer ? [] : ["no problems"];
  say(find("providers"), [driver, ...providers, ...all].join(" · "));
  mark(find("health"), "class", nodes.length ? "wrong" : "well");
}
