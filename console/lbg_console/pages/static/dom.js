/** Elements, text and words of the pages. Text reaches the page by `textContent` alone. */

export const byId = (id) => document.getElementById(id);

/** An element with classes and children; a child that is no node becomes text. */
export function element(name, classes = "", ...children) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.append(...children.filter((one) => one !== null));
  return made;
}

/** Writes only what differs: an unchanged text costs nothing. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, classes) {
  if (node.className !== classes) node.className = classes;
}

export function setHidden(node, isHidden) {
  if (node.hidden !== isHidden) node.hidden = isHidden;
}

/** A row of text over a node that is shown only with a text. */
export function setNote(node, text) {
  setText(node, text);
  setHidden(node, !text);
}

/** State of the survey: the reason why what is shown is old, and what the login of the console cannot see. */
export function showSurvey({ error, missing }) {
  setNote(byId("survey"), error);
  setNote(byId("missing"), missing && `Not checked: ${missing}`);
}

/**
 * The children of a node, one for each item of a list, by a key that identifies it: kept, moved, made and removed as the
 * list changes. `make` returns `{node, update(item)}`.
 */
export class Rows {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.rows = new Map();
  }

  show(items, keyOf) {
    const wanted = new Map();
    for (const item of items) wanted.set(keyOf(item), item);
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      row.node.remove();
      this.rows.delete(key);
    }
    let next = this.parent.firstElementChild;
    for (const [key, item] of wanted) {
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = this.make(item)));
      row.update(item);
      if (row.node === next) next = next.nextElementSibling;
      else this.parent.insertBefore(row.node, next);
    }
  }
}

/** Terms and values of a `dl`: `[label, value, note, classes]`. */
export class Facts {
  constructor(list) {
    this.rows = new Rows(list, ([label]) => {
      const value = element("span");
      const note = element("small");
      const node = element("div", "", element("dt", "", label), element("dd", "", value, " ", note));
      return {
        node,
        update([, text, more = "", classes = ""]) {
          setText(value, text);
          setText(note, more);
          setClass(node, classes);
        },
      };
    });
  }

  show(facts) {
    this.rows.show(facts, ([label]) => label);
  }
}

const COUNT = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** A count; null is one that could not be read. */
export const countText = (count) => (count === null || count === undefined ? "unknown" : COUNT.format(count));
export const compactText = (count) => (count === null || count === undefined ? "" : COMPACT.format(count));
/** Messages per second; null where they are not known. */
export const rateText = (rate) => (rate === null ? "unknown" : COUNT.format(rate < 10 ? Math.round(rate * 10) / 10 : Math.round(rate)));
export const clockText = (ms) => CLOCK.format(ms);

export function ageText(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

/** Age of the oldest message; a queue without a member may have an older one. */
export function oldestText({ oldest_s: seconds, has_older: hasOlder = false }) {
  if (seconds === null) return hasOlder ? "unknown" : "-";
  return `${hasOlder ? ">" : ""}${ageText(seconds)}`;
}

/** Time after which the backlog is gone at the present rate. */
export function clearsText({ clears_s: seconds }) {
  return seconds === null ? "-" : seconds === "never" ? "never" : ageText(seconds);
}

/** The colour of a problem, as a class; none without one, and of a note. */
export const severityClass = (severity) => ({ AtRisk: "bad", Stands: "bad", Late: "warn", Differs: "warn" })[severity] ?? "";

export const plural = (count, word, many = `${word}s`) => `${countText(count)} ${count === 1 ? word : many}`;

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const INVISIBLE_IN_BODY = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const escaped = (text) => `\\u${text.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** Text of others with the characters spelt out that would be invisible or turn the direction. */
export const visible = (text) => text.replace(INVISIBLE, escaped);
export const visibleBody = (text) => text.replace(INVISIBLE_IN_BODY, escaped);

/** Numbers as ranges: `0-3, 7`. */
export function rangesText(numbers) {
  const parts = [];
  for (let first = 0; first < numbers.length; ) {
    let last = first;
    while (last + 1 < numbers.length && numbers[last + 1] === numbers[last] + 1) last += 1;
    parts.push(last > first + 1 ? `${numbers[first]}–${numbers[last]}` : numbers.slice(first, last + 1).join(", "));
    first = last + 1;
  }
  return parts.join(", ");
}

export const groupPath = (name) => `/groups/${encodeURIComponent(name)}`;
export const keyPath = (name, key) => `${groupPath(name)}/key?key=${encodeURIComponent(key)}`;

/** The JSON that the page was made with. */
export const pageState = () => JSON.parse(byId("state").textContent);

const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";
const canHaveFocus = (node) => node.isConnected && !node.disabled && node.getClientRects().length > 0;
const nameOf = (node) => [node.tagName, node.id, node.href, node.textContent].join(" ");

/**
 * Changes the page and keeps the focus: on the same link or button, on one like it that is new, or else on the nearest
 * one that is left, the next before the previous.
 */
export function keepFocus(change) {
  const focused = document.activeElement;
  const main = byId("content");
  if (focused === main || !main.contains(focused)) return change();
  const before = [...main.querySelectorAll(FOCUSABLE)];
  const place = before.indexOf(focused);
  const name = nameOf(focused);
  change();
  if (canHaveFocus(focused)) return;
  const alike = [...main.querySelectorAll(FOCUSABLE)].find((one) => nameOf(one) === name && canHaveFocus(one));
  const near = before.slice(place + 1).find(canHaveFocus) ?? before.slice(0, place).findLast(canHaveFocus);
  (alike ?? near ?? main).focus({ preventScroll: true });
}

/** `draw` once before the next picture, however often it is requested. The focus stays. */
export function once(draw) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      keepFocus(draw);
    });
  };
}
