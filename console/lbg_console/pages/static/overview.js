/** All groups of the broker, live. */

import {
  Facts, Rows, ageText, byId, clearsText, countText, element, groupPath, oldestText, once, pageState, plural, rateText, setClass, setNote,
  setText, severityClass, showSurvey, visible,
} from "./dom.js";
import { Stream } from "./stream.js";

const SIGNS = { R: "●", P: "‖", A: "!", U: "×", "?": "?" };
const STRIP_MAX = 64;
const SORT_EVERY_MS = 5000;
const SEVERITIES = ["AtRisk", "Stands", "Late", "Differs", "Note"];
const lag = (row) => -(row.lag ?? row.ready ?? 0);
const SORTS = {
  problems: (row) => SEVERITIES.indexOf(row.severity),
  lag,
  rate: (row) => -row.rate,
  oldest: (row) => -(row.oldest_s ?? 0),
  name: () => 0,
};

const groups = new Map();
const filter = byId("filter");
const sort = byId("sort");
const table = byId("groups");
const facts = new Facts(byId("facts"));
let order = [];
let sortedAt = 0;
let now = 0;
let isRead = false;

function makeRow({ group }) {
  const link = element("a", "", element("bdi", "", visible(group)));
  link.href = groupPath(group);
  const strip = element("span", "strip");
  strip.setAttribute("aria-hidden", "true");
  const problem = element("span", "first-problem");
  const head = element("th", "", link, strip, problem);
  head.scope = "row";
  const cells = ["", "number", "number", "number", "number", "number", "number", "number", "number", "number", "", "number"].map((one) =>
    element("td", one),
  );
  const node = element("tr", "", head, ...cells);
  let shown = null;
  const [mode, served, members, published, rate, ready, unacked, oldest, clears, dead, state, problems] = cells;
  const words = element("span");
  const parked = element("a", "chip warn");
  parked.href = `${groupPath(group)}/parked`;
  state.append(parked, " ", words);
  const update = (row) => {
    setText(words, stateText(row));
    if (row === shown) return;
    const isMoved = row.strip !== shown?.strip || row.servers.join() !== shown.servers.join();
    if (isMoved) drawStrip(strip, row);
    shown = row;
    setText(mode, row.mode ?? "no readable record");
    setText(served, row.services ? `${row.served}/${row.services}` : "-");
    setCount(members, row.members);
    setText(published, rateText(row.publish_rate));
    setText(rate, rateText(row.rate));
    setCount(ready, row.ready);
    setCount(unacked, row.unacked);
    setText(oldest, oldestText(row));
    setText(clears, clearsText(row));
    setCount(dead, row.dead_letters);
    setNote(parked, parkedText(row));
    setText(problems, row.problems ? String(row.problems) : "");
    setText(problem, row.problems ? row.problem : "");
    if (problem.title !== problem.textContent) problem.title = problem.textContent;
    setClass(node, row.problems ? `problem ${severityClass(row.severity)}` : "");
  };
  return { node, update };
}

function setCount(cell, count) {
  setText(cell, countText(count));
  setClass(cell, count === null ? "number unknown" : count === 0 ? "number zero" : "number");
}

function stateText(row) {
  const words = [];
  if (row.paused) words.push("paused");
  if (row.ingress_paused) words.push("ingress paused");
  if (row.silent) words.push(`${row.silent} silent`);
  if (row.crashed_at) words.push(`crash ${ageText(Math.max(0, now - row.crashed_at) / 1000)} ago`);
  return words.join(", ");
}

/** Only of a group that has parked something; without a report of a member, its messages are counted. */
function parkedText({ parked_keys: keys, parked: messages }) {
  if (keys) return `${plural(keys, "key")} parked`;
  return messages ? `${plural(messages, "message")} parked` : "";
}

/** A cell for each queue: the index and colour of the member that serves it, or a sign. */
function drawStrip(strip, { strip: letters, servers }) {
  const count = Math.min(letters.length, STRIP_MAX);
  const more = letters.length > STRIP_MAX ? 1 : 0;
  while (strip.childElementCount > count + more) strip.lastElementChild.remove();
  while (strip.childElementCount < count + more) strip.append(element("span"));
  for (let place = 0; place < count; place += 1) {
    const index = servers[place] ?? null;
    const isServed = letters[place] === "R" && index !== null;
    const cell = strip.children[place];
    setClass(cell, isServed ? `m${index % 8}` : `s${letters[place] === "?" ? "X" : letters[place]}`);
    setText(cell, isServed ? String(index) : SIGNS[letters[place]] ?? "?");
  }
  if (more) setText(strip.lastElementChild, `+${letters.length - STRIP_MAX}`);
}

const rows = new Rows(table.tBodies[0], makeRow);

/** Rows change places every few seconds only, and never under a pointer or the focus. */
function sorted() {
  const isHeld = table.matches(":hover, :focus-within");
  const isKnown = order.length === groups.size && order.every((name) => groups.has(name));
  if (!isKnown || (!isHeld && performance.now() - sortedAt > SORT_EVERY_MS)) {
    const place = SORTS[sort.value];
    const next = sort.value === "problems" ? lag : () => 0;
    order = [...groups.values()]
      .sort((a, b) => place(a) - place(b) || next(a) - next(b) || (a.group < b.group ? -1 : 1))
      .map((one) => one.group);
    sortedAt = performance.now();
  }
  const text = filter.value.toLowerCase();
  return order.map((name) => groups.get(name)).filter((one) => one.group.toLowerCase().includes(text));
}

function draw() {
  const all = [...groups.values()];
  const shown = sorted();
  rows.show(shown, (one) => one.group);
  const sum = (value) => all.reduce((total, one) => (total === null || value(one) === null ? null : total + value(one)), 0);
  const withProblems = all.filter((one) => one.problems).length;
  const worst = SEVERITIES.find((severity) => all.some((one) => one.severity === severity));
  const unserved = all.reduce((total, one) => total + Math.max(0, one.services - one.served), 0);
  const lag = sum((one) => one.lag);
  const parked = all.reduce((total, one) => total + (one.parked ?? 0), 0);
  facts.show([
    ["Groups", countText(all.length)],
    ["With problems", countText(withProblems), "", severityClass(worst)],
    ["Queues unserved", countText(unserved)],
    ["Members", countText(sum((one) => one.members))],
    ["Rate", rateText(all.reduce((total, one) => total + one.rate, 0)), "/s"],
    ["Lag", countText(lag), lag === null ? "" : "messages"],
    ...(parked ? [["Parked", countText(parked), "messages", "warn"]] : []),
  ]);
  setText(byId("shown"), shown.length === all.length ? countText(all.length) : `${shown.length} of ${all.length}`);
  const emptyText = isRead ? "This broker has no group: lbg group create makes one." : "";
  setNote(byId("none"), shown.length ? "" : all.length ? "No group has this text in its name." : emptyText);
}

const drawSoon = once(draw);

function receive(event) {
  now = event.at;
  if (event.full) groups.clear();
  for (const name of event.gone ?? []) groups.delete(name);
  const news = [];
  for (const one of event.groups) {
    const before = groups.get(one.group);
    if (before && one.problems > before.problems) news.push(`${one.group}: ${one.problem}`);
    if (before && parkedText(one) && !parkedText(before)) news.push(`${one.group}: ${parkedText(one)}`);
    groups.set(one.group, one);
  }
  if (news.length) setText(byId("news"), news.length > 3 ? `${plural(news.length, "new problem")}` : news.join(". "));
  isRead = event.survey.at !== null;
  showSurvey(event.survey);
  drawSoon();
}

/** The choice stands in the page's address: it is the same after a reload, and can be sent to others. */
function choose() {
  sortedAt = -Infinity;
  order = [];
  const chosen = new URLSearchParams();
  if (filter.value) chosen.set("filter", filter.value);
  if (sort.value !== "problems") chosen.set("sort", sort.value);
  history.replaceState(null, "", chosen.size ? `?${chosen}` : location.pathname);
  drawSoon();
}

const chosen = new URLSearchParams(location.search);
filter.value = chosen.get("filter") ?? "";
if (chosen.get("sort") in SORTS) sort.value = chosen.get("sort");
filter.addEventListener("input", choose);
sort.addEventListener("change", choose);
byId("choice").addEventListener("submit", (event) => event.preventDefault());

receive(pageState());
new Stream("/events", {
  overview: receive,
  tick({ at, survey }) {
    now = at;
    isRead = survey.at !== null;
    showSurvey(survey);
    drawSoon();
  },
});
