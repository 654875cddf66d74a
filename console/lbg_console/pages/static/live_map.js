/** A cell for each queue or partition: who serves it, and how. In modes without them a cell for each member. */

import { byId, clockText, compactText, element, rateText, setClass, setText, severityClass, Rows, visible } from "./dom.js";

const DENSE = 40;
const TROUBLES = { Blocked: "blocked", Stalled: "stalled" };
const NOBODY = { Unassigned: "unassigned", Unbound: "no consumer", Unknown: "unknown" };

export class LiveMap {
  constructor({ colourOf, labelOf }) {
    this.colourOf = colourOf;
    this.labelOf = labelOf;
    this.list = byId("map");
    this.rows = new Rows(this.list, () => makeCell());
  }

  /** The group as it is. */
  show(group) {
    if (group.is_shared) this.draw((group.members ?? []).map((one) => this.memberCell(one)));
    else this.draw((group.services ?? []).map((one) => this.serviceCell(one, group)));
  }

  /** The queues at a moment of the past. */
  showPast(servers, word, isPaused) {
    const cells = [...servers].map(([number, span]) => {
      const member = span?.member ?? null;
      const since = span ? `since ${clockText(span.from)}` : "not known";
      return {
        key: number,
        classes: member === null ? "nobody" : `m${this.colourOf(member)}${isPaused ? " paused" : ""}`,
        which: `${word} ${number}`,
        short: String(number),
        more: "",
        server: member === null ? (span ? "nobody" : "?") : this.labelOf(member),
        title: member ?? "",
        work: isPaused ? `paused, ${since}` : since,
      };
    });
    this.draw(cells.sort((a, b) => a.key - b.key));
  }

  draw(cells) {
    const isDense = cells.length > DENSE;
    this.list.classList.toggle("dense", isDense);
    this.rows.show(isDense ? cells.map((one) => ({ ...one, which: one.short, title: `${one.which}: ${one.title}` })) : cells, (one) => one.key);
  }

  serviceCell(one, group) {
    const primary = one.bindings.find((binding) => binding.role === "primary")?.member ?? null;
    const active = one.bindings.find((binding) => binding.active);
    const stuck = one.severity !== null && one.bindings.find((binding) => binding.progress in TROUBLES);
    const isPaused = group.paused || one.status === "Paused";
    const isMoving = one.member !== null && primary !== null && primary !== one.member;
    const words = [];
    if (one.member === null) words.push(NOBODY[one.status] ?? "");
    else if (stuck) words.push(TROUBLES[stuck.progress]);
    else if (isPaused) words.push("paused");
    else if (one.rate !== null) words.push(`${rateText(one.rate)}/s`);
    if (active?.in_flight) words.push(`+${compactText(active.in_flight)}`);
    const classes = [one.member === null ? "nobody" : `m${this.colourOf(one.member)}`, severityClass(one.severity)];
    if (isPaused) classes.push("paused");
    if (isMoving) classes.push("moving");
    return {
      key: one.number,
      classes: classes.join(" "),
      which: `${group.word} ${one.number}`,
      short: String(one.number),
      more: isMoving ? `to ${this.labelOf(primary)}` : one.ready === 0 ? "" : one.ready === null ? "unknown" : `${compactText(one.ready)} ready`,
      server: one.member === null ? "nobody" : this.labelOf(one.member),
      title: one.member ?? "",
      work: words.join(" "),
    };
  }

  memberCell(one) {
    return {
      key: one.name,
      classes: `m${this.colourOf(one.name)}${one.state === "live" ? ` ${severityClass(one.severity)}` : " bad"}${one.paused ? " paused" : ""}`,
      which: `index ${one.index}`,
      short: String(one.index),
      more: one.state === "live" ? "" : one.state,
      server: this.labelOf(one.name),
      title: one.name,
      work: one.paused ? "paused" : `${rateText(one.rate)}/s${one.in_flight ? ` +${compactText(one.in_flight)}` : ""}`,
    };
  }
}

function makeCell() {
  const number = element("span");
  const more = element("span");
  const server = element("bdi", "server");
  const work = element("span", "work");
  const node = element("li", "", element("span", "which", number, more), server, work);
  return {
    node,
    update(cell) {
      setClass(node, cell.classes);
      setText(number, cell.which);
      setText(more, cell.more);
      setText(server, visible(cell.server));
      if (server.title !== cell.title) server.title = cell.title;
      setText(work, cell.work);
    },
  };
}

/** Names of members as short as those of now differ: pods of one deployment begin alike. */
export function shortNames(names, live) {
  const longest = Math.max(0, ...live.map((name) => name.length));
  const first = live[0] ?? "";
  let common = 0;
  if (longest > 12 && live.length > 1) {
    while (live.every((name) => name[common] === first[common] && common < name.length)) common += 1;
    common = first.lastIndexOf("-", common - 1) + 1;
  }
  const prefix = first.slice(0, common);
  return new Map(names.map((name) => [name, common && name.startsWith(prefix) ? `…${name.slice(common)}` : name]));
}
