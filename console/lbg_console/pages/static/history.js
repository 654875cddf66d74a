/** What is known of a group's past: who served each queue, events, and points of the charts. No element of the page. */

const POINTS_MAX = 20000;
const EVENTS_MAX = 2000;
const SPANS_MAX = 500;
const GAP_MS = 20000;
const SERIES = ["rate", "publish_rate", "ready", "unacked", "oldest_s", "members", "dead_letters"];
const noPoints = () => ({ at: [], ...Object.fromEntries(SERIES.map((name) => [name, []])) });

export class History {
  constructor() {
    this.knownFrom = null;
    this.queues = new Map();
    this.events = [];
    this.points = noPoints();
    this.version = 0;
  }

  /** The answer of a group's timeline; what is newer here stays. */
  load(timeline) {
    const newer = this.events;
    this.version += 1;
    this.knownFrom = timeline.known_from;
    this.queues = new Map(timeline.queues.map((one) => [one.number, one.spans]));
    this.events = [];
    const points = timeline.samples;
    this.points = noPoints();
    points.at.forEach((at, place) => {
      this.sample({ at, ...Object.fromEntries(SERIES.map((name) => [name, points[name][place]])) });
    });
    for (const event of timeline.events) this.record(event);
    for (const event of newer) if (event.at > timeline.at) this.change(event);
  }

  /** An event as it happens; one with the number of an earlier one takes its place. */
  change(event) {
    this.record(event);
    if (event.kind !== "moved" && event.kind !== "unserved") return;
    const spans = this.queues.get(event.queue) ?? [];
    this.queues.set(event.queue, spans);
    const last = spans[spans.length - 1];
    const span = { from: event.at, to: null, member: event.member ?? null, cause: event.cause ?? "", pause_s: event.pause_s ?? null };
    if (last && last.from >= event.at) spans[spans.length - 1] = { ...span, from: last.from };
    else {
      if (last) last.to = event.at;
      spans.push(span);
      if (spans.length > SPANS_MAX) spans.shift();
    }
  }

  record(event) {
    this.version += 1;
    const place = this.events.findLastIndex((one) => one.id === event.id);
    if (place >= 0) this.events[place] = event;
    else this.events.push(event);
    if (this.events.length > EVENTS_MAX) this.events.shift();
  }

  sample(point) {
    const { at } = this.points;
    const last = at[at.length - 1];
    if (last !== undefined && point.at <= last) return;
    this.version += 1;
    // A line does not cross a time in which nothing was read.
    if (last !== undefined && point.at - last > GAP_MS) this.push({ at: last + 1 });
    this.push(point);
    if (at.length > POINTS_MAX) for (const column of Object.values(this.points)) column.splice(0, POINTS_MAX / 10);
  }

  push(point) {
    this.points.at.push(point.at);
    for (const name of SERIES) this.points[name].push(point[name] ?? null);
  }

  /** The span of each queue at a moment, by its number; null where nothing is known. */
  servers(at) {
    const found = new Map();
    for (const [number, spans] of this.queues) {
      found.set(number, spans.find((one) => one.from <= at && (one.to === null || at < one.to)) ?? null);
    }
    return found;
  }

  /** Place of the last point before a moment; -1 where none is near. */
  pointAt(moment) {
    const { at } = this.points;
    const place = at.findLastIndex((one) => one <= moment);
    return place >= 0 && moment - at[place] <= GAP_MS ? place : -1;
  }

  /** Numbers of the group at a moment; null for what is not known. */
  sampleAt(moment) {
    const place = this.pointAt(moment);
    return Object.fromEntries(SERIES.map((name) => [name, place < 0 ? null : this.points[name][place]]));
  }

  /** Names of the members at a moment, from those of now and the events since. */
  membersAt(moment, members) {
    const names = new Set(members);
    for (const one of this.events.filter((each) => each.at > moment).reverse()) {
      if (one.kind === "joined") names.delete(one.member);
      if (one.kind === "left" || one.kind === "crashed") names.add(one.member);
    }
    return [...names];
  }

  /** Events of a time, in order. */
  between(from, to) {
    return this.events.filter((one) => from <= one.at && one.at <= to);
  }

  /** True if consumption of the group was paused at a moment. */
  isPaused(at) {
    return this.wasPaused("", at, false);
  }

  /** True if consumption, or `ingress_`, was paused at a moment. `now`: whether it is now. */
  wasPaused(what, at, now) {
    const kinds = [`${what}paused`, `${what}resumed`];
    const last = this.events.findLast((one) => one.at <= at && kinds.includes(one.kind));
    const next = this.events.find((one) => one.at > at && kinds.includes(one.kind));
    return last ? last.kind === kinds[0] : next ? next.kind === kinds[1] : now;
  }

  /** Times in which the group was paused, as `[from, to]`. */
  pauses(from, to) {
    const found = [];
    let began = this.isPaused(from) ? from : null;
    for (const one of this.between(from, to)) {
      if (one.kind === "paused") began ??= one.at;
      if (one.kind === "resumed" && began !== null) {
        found.push([began, one.at]);
        began = null;
      }
    }
    if (began !== null) found.push([began, to]);
    return found;
  }
}
