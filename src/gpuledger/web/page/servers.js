// Servers of language models: tokens and joules per token.

import { arrange, el, find, mark, say } from "./dom.js";
import { NONE, count, significant, watts } from "./format.js";

const estimate = (value, error) => (value === null || value === undefined ? NONE : `${significant(value)} ± ${significant(error)} J`);
const joules = (value) => (value === null || value === undefined ? NONE : `${significant(value)} J`);
const COLUMNS = [
  ["Server", (server) => server.owner || server.server],
  ["Model", (server) => (server.up ? server.models.join(", ") || NONE : server.reason || "is down")],
  ["Output tokens/s", (server) => significant(server.output_tokens_per_second)],
  ["Prompt tokens/s", (server) => significant(server.prompt_tokens_per_second)],
  ["Energy per output token", (server) => joules(server.joules_per_output_token)],
  ["Energy per token", (server) => joules(server.joules_per_token)],
  ["Parked", (server) => watts(server.parked_watts)],
  ["Prefill, estimated", (server) => estimate(server.prefill_joules, server.prefill_error_joules)],
  ["Decode, estimated", (server) => estimate(server.decode_joules, server.decode_error_joules)],
  ["Output tokens", (server) => count(server.output_tokens)],
];
const made = new Map();

function row(server) {
  if (!made.has(server.server)) {
    const cells = COLUMNS.map((_, index) => el(index ? "td" : "th", index < 2 ? {} : { class: "number" }));
    mark(cells[0], "scope", "row");
    made.set(server.server, el("tr", {}, ...cells));
  }
  const node = made.get(server.server);
  COLUMNS.forEach(([, text], index) => say(node.children[index], text(server)));
  mark(node, "class", server.up ? null : "down");
  return node;
}

export function showServers(snapshot) {
  const servers = snapshot.servers ?? []; // an older exporter sends none
  find("servers").hidden = !servers.length;
  if (!servers.length) return;
  const [head, body] = find("servers-table").children;
  if (!head.children.length) {
    head.append(el("tr", {}, ...COLUMNS.map(([name], index) => el("th", { text: name, scope: "col", class: index < 2 ? "" : "number" }))));
  }
  arrange(body, servers.map(row));
  const names = new Set(servers.map((server) => server.server));
  for (const name of made.keys()) if (!names.has(name)) made.delete(name);
}
