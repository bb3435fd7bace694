// What is wrong and what to do about it; who is asked for names, and how they are.

import { arrange, el, find, mark, say, withCode } from "./dom.js";
import { clock } from "./format.js";

const made = new Map();
const LEVELS = { problem: "Problem", warning: "Warning", note: "Note" };

function item(problem) {
  return el("li", { class: problem.level },
    el("strong", {}, el("span", { class: "level", text: LEVELS[problem.level] ?? problem.level }), ` ${problem.about}: `),
    el("span", { text: problem.what }), el("p", { class: "fix" }, ...withCode(problem.fix)));
}

export function showHealth(picture) {
  const keys = new Set();
  const nodes = picture.problems.map((problem) => {
    const key = JSON.stringify(problem);
    keys.add(key);
    if (!made.has(key)) made.set(key, item(problem));
    return made.get(key);
  });
  for (const key of made.keys()) if (!keys.has(key)) made.delete(key);
  arrange(find("problems"), nodes);
  const driver = picture.driver.up
    ? `Driver ${picture.driver.driver_version || "?"}, CUDA ${picture.driver.cuda_version || "?"}`
    : "The driver cannot be read";
  const providers = picture.providers.map((one) =>
    (one.up ? `${one.name} answers` : `${one.name} is down since ${clock(one.since)}`));
  const all = nodes.length ? [] : ["all is well"];
  say(find("providers"), [driver, ...providers, ...all].join(" · "));
  mark(find("health"), "class", nodes.length ? "wrong" : "well");
}
