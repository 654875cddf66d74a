/** One group, live: its map, the timeline, charts, members, queues, problems and acts. */

import { Charts } from "./charts.js";
import { command, commandLine } from "./copy.js";
import {
  Facts, Rows, ageText, byId, clearsText, clockText, countText, element, groupPath, keepFocus, keyPath, oldestText, once, pageState, plural, rangesText,
  rateText, setClass, setHidden, setNote, setText, severityClass, showSurvey,
  visible,
} from "./dom.js";
import { History } from "./history.js";
import { LiveMap, shortNames } from "./live_map.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";

const ACTS_SHOWN = 5;
const EVENTS_SHOWN = 200;
const REBALANCE = { HoldDown: "holding", Rebalancing: "moving" };

let group = pageState();
const name = group.group;
const history = new History();
let clock = { server: group.at, here: performance.now() };
const nowMs = () => clock.server + performance.now() - clock.here;

// Members keep their colours as long as the page is open.

const colours = new Map();
let labels = new Map();
let labelled = "";

function colourOf(member) {
  if (!colours.has(member)) colours.set(member, colours.size % 8);
  return colours.get(member);
}

const labelOf = (member) => labels.get(member) ?? member;

function nameMembers() {
  for (const one of group.members ?? []) colourOf(one.name);
  for (const spans of history.queues.values()) for (const one of spans) if (one.member !== null) colourOf(one.member);
  const names = [...colours.keys()];
  const live = (group.members ?? []).map((one) => one.name);
  if (labelled === [...names, "", ...live].join("\n")) return;
  labelled = [...names, "", ...live].join("\n");
  labels = shortNames(names, live.length > 1 ? live : names);
}

const facts = new Facts(byId("facts"));
const map = new LiveMap({ colourOf, labelOf });
const timeline = new Timeline(history, { colourOf, labelOf, nowMs, onMoment: () => keepFocus(showMoment) });
const charts = new Charts(history, (moment) => timeline.choose(moment));

function cellsOf(node, count, numbers) {
  const cells = Array.from({ length: count }, (_, place) => element("td", numbers.includes(place) ? "number" : ""));
  node.append(...cells);
  return cells;
}

function memberTag(member) {
  const tag = element("bdi", `tag m${colourOf(member)}`, visible(labelOf(member)));
  tag.title = member;
  return tag;
}

function keyLink(key) {
  const link = element("a", "", element("bdi", "", visible(key)));
  link.href = keyPath(name, key);
  return link;
}

/** A list of keys with a number at each, drawn anew only where one differs. */
function keyList(list) {
  const rows = new Rows(list, ([key]) => {
    const count = element("span", "muted");
    return { node: element("li", "", keyLink(key), " ", count), update: ([, text]) => setText(count, text) };
  });
  return (keys) => rows.show(keys, ([key]) => key);
}

const memberRows = new Rows(byId("members").tBodies[0], (one) => {
  const tag = memberTag(one.name);
  const head = element("th", "", tag);
  head.scope = "row";
  const node = element("tr", "", head);
  const [index, state, serves, p50, p99, busy, rate, inFlight, delivered, oldest, keys] = cellsOf(node, 11, [0, 3, 4, 5, 6, 7, 8, 9]);
  const list = element("ul", "keys");
  keys.append(list);
  const [half, slow] = [element("span"), element("small")];
  p50.append(half, slow);
  const showKeys = keyList(list);
  return {
    node,
    update(member) {
      setText(tag, visible(labelOf(member.name)));
      setText(index, String(member.index));
      setText(state, memberState(member));
      setClass(state, member.state === "live" ? severityClass(member.severity) : "bad");
      setText(serves, group.is_shared ? "all" : rangesText(member.serves) || "-");
      setText(half, member.pace.p50);
      setText(slow, member.slow ?? "");
      setClass(p50, member.slow === null ? "number" : "number warn");
      setText(p99, member.pace.p99);
      setText(busy, member.pace.busy);
      setText(rate, rateText(member.rate));
      setText(inFlight, countText(member.in_flight));
      setText(delivered, countText(member.delivered));
      setText(oldest, oldestText(member));
      showKeys(member.keys.map(([key, count]) => [key, count > 1 ? `${countText(count)}/s` : ""]));
    },
  };
});

function memberState(member) {
  const words = [member.state === "live" ? "live" : `${member.state} ${ageText(member.silent_s)}`];
  if (member.paused) words.push("paused");
  if (REBALANCE[member.rebalance]) words.push(REBALANCE[member.rebalance]);
  if (member.is_standing_by) words.push("standing by");
  return words.join(", ");
}

const serviceRows = new Rows(byId("services").tBodies[0], (one) => {
  const head = element("th", "", String(one.number));
  head.scope = "row";
  const node = element("tr", "", head);
  const [status, server, primary, secondary, rate, ready, unacked, full, progress] = cellsOf(node, 9, [4, 5, 6, 7]);
  for (const cell of [server, primary, secondary]) cell.append(element("span", "tags"));
  return {
    node,
    update(service) {
      setText(status, service.status);
      setClass(status, severityClass(service.severity));
      showTags(server, service.member === null ? [] : [service.member]);
      const of = (role) => service.bindings.filter((binding) => binding.role === role).map((binding) => binding.member);
      showTags(primary, of("primary"));
      showTags(secondary, of("secondary"));
      setText(rate, rateText(service.rate));
      setText(ready, countText(service.ready));
      setText(unacked, countText(service.unacked));
      setText(full, service.full_percent === null ? "-" : `${service.full_percent} %`);
      const worst = ["Stalled", "Blocked", "Working", "Idle"].find((word) => service.bindings.some((binding) => binding.progress === word));
      // What had messages in the last seconds is not idle, though none is there at this moment.
      const isHeld = group.paused && service.unacked > 0 && worst !== "Stalled";
      setText(progress, isHeld ? "Paused" : (worst === "Idle" && service.rate > 0 ? "Working" : worst) ?? "-");
      setClass(progress, worst === "Stalled" || worst === "Blocked" ? severityClass(service.severity) : "");
    },
  };
});

/** Members in a cell; `shown` is what it has. */
const tagsShown = new WeakMap();
function showTags(cell, members) {
  const wanted = members.map((member) => `${labelOf(member)} ${member}`).join("\n");
  if (tagsShown.get(cell) === wanted) return;
  tagsShown.set(cell, wanted);
  cell.firstElementChild.replaceChildren(...members.map(memberTag));
}

/** Members cut a key in a report to so many characters: one as long as that may be another key. */
const REPORTED_KEY_CHARS = 64;

const problemRows = new Rows(byId("problems"), (problem) => {
  const line = element("p", "text");
  const node = element("li", "", line);
  const { subject, remedy } = problem;
  if (remedy) node.append(element("p", "", visible(remedy.text)));
  const keys = (subject.keys ?? []).filter((key) => key.length < REPORTED_KEY_CHARS);
  if (keys.length) node.append(element("p", "keys", ...keys.flatMap((key) => [keyLink(key), " "])));
  const commands = remedy?.commands ?? [];
  node.append(...commands.map(commandLine).map(command));
  if (problem.kind === "MessagesPoisoned" && subject.message && actsList) {
    const href = `${groupPath(group.group)}/acts/skip?id=${encodeURIComponent(subject.message)}`;
    node.append(element("p", "", actLink({ href, title: "Skip it" })));
  }
  return {
    node,
    update: ({ text, severity }) => {
      setText(line, visible(text));
      setClass(node, severityClass(severity));
    },
  };
});

/** The figures in its text change, and it stays the same. */
const nameOfProblem = ({ kind, subject, remedy }) => JSON.stringify([kind, subject, remedy]);

const actsList = byId("acts");
const actRows =
  actsList &&
  new Rows(actsList, (act) => {
    const text = element("span", "text");
    const node = element("li", "", element("time", "muted", clockText(act.at)), text);
    return {
      node,
      update({ state, by, act: word, detail, text: result }) {
        setClass(node, state);
        setText(text, visible(`${by}: ${word}${detail ? ` ${detail}` : ""}: ${state === "running" ? "running" : result || state}`));
      },
    };
  });

let offered = null;
function showOffered(acts) {
  const list = byId("acts-offered");
  const wanted = JSON.stringify(acts ?? null);
  if (!list || !acts || wanted === offered) return;
  if (offered !== null && list.matches(":focus-within")) return; // not under the hands of who fills it in
  const isFirst = offered === null;
  offered = wanted;
  setHidden(byId("acts-section"), !acts.length && !actRows.rows.size);
  if (isFirst) return; // as the page was made with it
  list.replaceChildren(...acts.map((act) => element("li", "", act.fields.length ? actForm(act) : actLink(act))));
}

function actLink({ href, title }) {
  const link = element("a", "button", title);
  link.href = href;
  return link;
}

function actForm({ href, title, fields }) {
  const inputs = fields.map((field) => {
    const input = element("input");
    Object.assign(input, { name: field, type: "number", min: "1", required: true, placeholder: field, ariaLabel: `${title}: ${field}` });
    return input;
  });
  const button = element("button", "", title);
  const form = element("form", "inline", ...inputs, button);
  form.action = href;
  return form;
}

const showHot = keyList(byId("hot"));

const eventRows = new Rows(byId("events"), (event) => {
  const time = element("button", "", clockText(event.at));
  time.type = "button";
  const text = element("span", "text");
  const node = element("li", event.kind, time, text);
  time.addEventListener("click", () => timeline.choose(event.at));
  return { node, update: (one) => setText(text, visible(one.text)) };
});

const isLater = (event) => timeline.moment !== null && event.at > timeline.moment;

function showEvents() {
  const [from, to] = timeline.range();
  const shown = history.between(from, to).reverse().slice(0, EVENTS_SHOWN);
  eventRows.show(shown, (one) => one.id);
  for (const one of shown) setClass(eventRows.rows.get(one.id).node, isLater(one) ? `${one.kind} later` : one.kind);
  setHidden(byId("no-events"), shown.length > 0);
}

const colourOfKind = (kind) => severityClass(group.problems.find((one) => one.kind === kind)?.severity);

function showFacts() {
  if (timeline.moment !== null) return showPastFacts(timeline.moment);
  const [trend, ...by] = group.lag_trend.split(" ");
  const shown = [
    ["Published", rateText(group.publish_rate), group.publish_rate === null ? "" : "/s"],
    ["Finished", rateText(group.rate), "/s"],
    ["Ready", countText(group.ready)],
    ["Unacked", countText(group.unacked)],
    ["Oldest", oldestText(group)],
    ["Lag", trend, by.join(" ")],
    ["Clears in", clearsText(group)],
    ["Members", group.members === null ? "unknown" : countText(group.members.length)],
    ["Dead letters", countText(group.dead_letters)],
  ];
  if (group.parked !== null) {
    const keys = group.parked_keys === null ? "" : plural(group.parked_keys, "key");
    shown.push(["Parked", countText(group.parked), keys, colourOfKind("KeysParked")]);
  }
  if (group.unrouted) shown.push(["Unrouted", countText(group.unrouted), "", colourOfKind("Unrouted")]);
  facts.show(shown);
  setNote(byId("sequences"), group.sequences);
}

function showPastFacts(moment) {
  const then = history.sampleAt(moment);
  const isKnown = then.rate !== null;
  facts.show([
    ["Published", rateText(then.publish_rate), then.publish_rate === null ? "" : "/s"],
    ["Finished", isKnown ? rateText(then.rate) : "unknown", isKnown ? "/s" : ""],
    ["Ready", countText(then.ready)],
    ["Unacked", countText(then.unacked)],
    ["Oldest", isKnown ? oldestText(then) : "unknown"],
    ["Members", countText(then.members)],
    ["Dead letters", countText(then.dead_letters)],
  ]);
}

const stateRows = new Rows(byId("states"), () => {
  const node = element("span");
  return { node, update: ([text, classes]) => (setText(node, text), setClass(node, `chip ${classes}`)) };
});

function showStates() {
  const states = [];
  const { moment } = timeline;
  const isPaused = (what, now) => (moment === null ? now : history.wasPaused(what, moment, now));
  if (isPaused("", group.paused)) states.push(["paused", "warn"]);
  if (isPaused("ingress_", group.ingress_paused)) states.push(["ingress paused", "warn"]);
  if (moment === null && REBALANCE[group.rebalance]) states.push([REBALANCE[group.rebalance], ""]);
  if (moment === null && group.repartition !== null) states.push([`repartition to ${group.repartition}`, "warn"]);
  if (isDeleted) states.push(["deleted", "bad"]);
  stateRows.show(states, ([text]) => text);
  const about = [group.mode ? `mode ${group.mode}` : "no readable record"];
  const { hash_count: hashes, queue_count: queues } = group.attributes ?? {};
  if (queues) about.push(plural(queues, group.word), plural(hashes, "hash", "hashes"));
  if (group.is_of_kubernetes) about.push(`owner ${visible(group.owner)}`);
  setText(byId("about"), about.join(", "));
}

/** What modes without queues have beside the map. */
function showShared() {
  const parent = byId("map-rows");
  const { message_groups: keys, sessions } = group;
  setHidden(parent, !keys && !sessions);
  if (keys) {
    const text = `${plural(keys.known, "message group")}, ${countText(keys.busy)} at a member now`;
    if (!parent.firstElementChild) parent.append(element("p", "note"));
    setText(parent.firstElementChild, text);
  }
  if (!sessions) return;
  if (!parent.firstElementChild) parent.append(sessionTable(), element("p", "note"));
  const more = sessions.count > sessions.rows.length ? `, the first ${sessions.rows.length} of ${plural(sessions.count, "session")}` : "";
  setText(parent.lastElementChild, `${plural(sessions.pool, "message")} without a session yet${sessions.closed ? ", closed for new ones" : ""}${more}`);
  sessionRows.show(sessions.rows, (one) => one.session);
}

let sessionRows = null;
function sessionTable() {
  const heads = ["Session", "State", "Member", "Assigned", "Acknowledged", "Messages"].map((text, place) => {
    const head = element("th", place > 2 ? "number" : "", text);
    head.scope = "col";
    return head;
  });
  const body = element("tbody");
  sessionRows = new Rows(body, (one) => {
    const head = element("th", "", element("bdi", "", visible(one.session)));
    head.scope = "row";
    const node = element("tr", "", head);
    const [state, member, assigned, acknowledged, messages] = cellsOf(node, 5, [2, 3, 4]);
    return {
      node,
      update(row) {
        setText(state, row.state);
        setClass(state, row.state === "stranded" ? "bad" : "");
        setText(member, row.server === null ? "-" : visible(row.server));
        setText(assigned, countText(row.assigned));
        setText(acknowledged, countText(row.acknowledged));
        setText(messages, countText(row.messages));
      },
    };
  });
  return element("table", "", element("caption", "", "Sessions"), element("thead", "", element("tr", "", ...heads)), body);
}

function showMap() {
  const { moment } = timeline;
  setText(byId("map-title"), moment === null ? "Live map" : "Map");
  if (moment === null) map.show(group);
  else if (group.is_shared) map.draw([]);
  else map.showPast(history.servers(moment), group.word, history.wasPaused("", moment, group.paused));
}

/** What each member served at a moment, as rows of the table: the other cells are hidden then. */
function pastMembers(moment) {
  const served = new Map(history.membersAt(moment, (group.members ?? []).map((one) => one.name)).map((one) => [one, []]));
  for (const [number, span] of history.servers(moment)) {
    if (span?.member) served.set(span.member, [...(served.get(span.member) ?? []), number]);
  }
  const pace = { p50: "", p99: "", busy: "" };
  const other = { index: "", state: "live", severity: null, pace, slow: null, rate: null, in_flight: null, delivered: null, oldest_s: null, keys: [] };
  return [...served].map(([one, serves]) => ({ ...other, name: one, serves: serves.sort((a, b) => a - b) }));
}

function pastServices(moment) {
  const other = { severity: null, bindings: [], rate: null, ready: null, unacked: null, full_percent: null };
  const rows = [...history.servers(moment)].map(([number, span]) => {
    return { ...other, number, member: span?.member ?? null, status: span ? (span.member ? "served" : "unserved") : "unknown" };
  });
  return rows.sort((a, b) => a.number - b.number);
}

/** All of the page is of the chosen moment; what is not kept of the past is hidden, and named. */
function showMoment() {
  const { moment } = timeline;
  document.body.classList.toggle("past", moment !== null);
  const lost = group.is_shared ? "who had which messages" : "counts of single members and queues";
  const text = moment === null ? "" : `As it was at ${timeline.text}. Not kept of the past: problems, keys, and ${lost}.`;
  setNote(byId("moment"), text);
  const then = moment === null ? "" : ` at ${clockText(moment)}`;
  for (const one of document.querySelectorAll(".then")) setText(one, then);
  draw();
  charts.show(timeline.range(), moment);
  showEvents();
}

let isDeleted = false;

function draw() {
  showSurvey(group.survey);
  if (group.members === undefined) {
    setText(byId("about"), "it is read for the first time");
    return;
  }
  nameMembers();
  const { word } = group;
  timeline.word = word;
  setHidden(byId("timeline"), group.is_shared);
  setText(byId("timeline-title"), group.is_shared ? "Over time" : `Who served each ${word}`);
  showFacts();
  showStates();
  showMap();
  showShared();
  const { moment } = timeline;
  const members = moment === null ? group.members : pastMembers(moment);
  memberRows.show(members ?? [], (one) => `${one.index} ${one.name}`);
  setNote(byId("no-members"), members === null ? "The members are unknown: no status report could be read." : members.length ? "" : "This group has no member.");
  setHidden(byId("services-table"), group.is_shared || group.services === null);
  const title = word[0].toUpperCase() + word.slice(1);
  setText(byId("services-title"), `${title}s`);
  setText(byId("services").tHead.rows[0].cells[0], title);
  serviceRows.show(moment === null ? group.services ?? [] : pastServices(moment), (one) => one.number);
  setHidden(byId("problems-section"), !group.problems.length);
  problemRows.show(group.problems, nameOfProblem);
  setHidden(byId("hot-section"), !group.hot_keys.length);
  showHot(group.hot_keys.map(({ key, text }) => [key, text]));
  actRows?.show(group.acts.slice(0, ACTS_SHOWN), (one) => one.id);
  showOffered(group.acts_offered);
  timeline.showClock();
  timeline.draw();
}

const drawSoon = once(draw);
const drawPast = once(() => {
  nameMembers();
  timeline.draw();
  showEvents();
  charts.show(timeline.range(), timeline.moment);
});

async function readTimeline() {
  const answer = await fetch(`${groupPath(name)}/timeline`);
  if (!answer.ok) return;
  const wasEmpty = history.version === 0;
  history.load(await answer.json());
  if (wasEmpty) timeline.fit();
  drawPast();
}

function setClock(at) {
  clock = { server: at, here: performance.now() };
}

draw();
setInterval(() => {
  if (document.hidden) return;
  if (timeline.moment !== null) keepFocus(showMoment);
  else if (!document.body.classList.contains("old")) timeline.draw();
}, 1000);
const handlers = {
  group(event) {
    group = event;
    setClock(event.at);
    drawSoon();
  },
  change(event) {
    history.change(event);
    drawPast();
  },
  sample(point) {
    history.sample(point);
    if (timeline.moment === null) drawPast();
  },
  tick: ({ at, survey }) => {
    setClock(at);
    group.survey = survey;
    showSurvey(group.survey);
  },
  gone() {
    isDeleted = true;
    drawSoon();
  },
};
new Stream(`${groupPath(name)}/events`, handlers, readTimeline);
