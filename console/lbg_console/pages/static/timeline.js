/** Who served each queue over time, on a canvas, with a slider that chooses a moment. */

import { ageText, byId, clockText, plural, setText } from "./dom.js";

const LEFT = 36;
const RIGHT = 12;
const TOP = 18;
const BOTTOM = 22;
const STEPS = 1000;
const TICKS_MS = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400].map((seconds) => seconds * 1000);
const MARKED = new Set(["moved", "unserved", "joined", "left", "crashed", "paused", "resumed", "ingress_paused", "ingress_resumed"]);

/** Kinds of events that one steps through. */
const isMarked = (event) => MARKED.has(event.kind);

export class Timeline {
  /** `colourOf`: place of a member in the row of colours. `nowMs`: the server's clock. `onMoment`: null is now. */
  constructor(history, { colourOf, labelOf, nowMs, onMoment }) {
    this.history = history;
    this.colourOf = colourOf;
    this.labelOf = labelOf;
    this.nowMs = nowMs;
    this.onMoment = onMoment;
    this.moment = null;
    this.word = "queue";
    this.frozen = null;
    this.drawn = "";
    this.canvas = byId("timeline");
    this.slider = byId("scrub");
    this.slider.max = STEPS;
    this.slider.value = STEPS;
    this.window = byId("window");
    this.window.addEventListener("change", () => this.choose(null));
    this.slider.addEventListener("input", () => {
      const [from, to] = this.range();
      const place = Number(this.slider.value);
      this.choose(place >= STEPS ? null : from + ((to - from) * place) / STEPS);
    });
    byId("now").addEventListener("click", () => {
      this.choose(null);
      this.slider.focus(); // the button has no effect from now on
    });
    byId("earlier").addEventListener("click", () => this.step(-1));
    byId("later").addEventListener("click", () => this.step(1));
    const drag = (event) => event.buttons & 1 && this.choose(this.momentAt(event.offsetX));
    this.canvas.addEventListener("pointerdown", drag);
    this.canvas.addEventListener("pointermove", drag);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette = null;
      this.drawn = "";
      this.draw();
    });
  }

  /** First and last moment shown; they stand still while a moment is chosen. */
  range() {
    if (this.moment !== null && this.frozen) return this.frozen;
    const to = this.nowMs();
    const length = Number(this.window.value);
    const from = length ? to - length : Math.min(this.history.knownFrom ?? to - 300000, to - 60000);
    return [from, to];
  }

  /** A shorter time than at first where no more is known. */
  fit() {
    if (this.nowMs() - this.history.knownFrom < Number(this.window.options[0].value)) this.window.selectedIndex = 0;
  }

  choose(moment) {
    const [from, to] = this.range();
    if (moment !== null && (moment < from || moment > to)) this.moment = this.frozen = null;
    const [first, last] = this.range();
    if (moment === null) this.moment = this.frozen = null;
    else {
      this.frozen ??= [first, last];
      this.moment = Math.max(first, Math.min(last, moment));
    }
    this.slider.value = this.moment === null ? STEPS : Math.round(((this.moment - first) / (last - first)) * STEPS);
    this.showClock();
    byId("now").disabled = this.moment === null;
    this.draw();
    this.onMoment(this.moment);
  }

  /** The chosen moment and how long ago it is. */
  get text() {
    return this.moment === null ? "now" : `${clockText(this.moment)}, ${ageText((this.nowMs() - this.moment) / 1000)} ago`;
  }

  showClock() {
    setText(byId("at"), this.text);
    this.slider.setAttribute("aria-valuetext", this.text);
  }

  /** To the next event before or after the moment. */
  step(direction) {
    const [from, to] = this.range();
    const events = this.history.between(from, to).filter(isMarked);
    const at = this.moment ?? Infinity;
    const next = direction < 0 ? events.findLast((one) => one.at < at) : events.find((one) => one.at > at);
    if (next) this.choose(next.at);
    else if (direction > 0) this.choose(null);
  }

  momentAt(x) {
    const [from, to] = this.range();
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    return from + (to - from) * Math.max(0, Math.min(1, (x - LEFT) / width));
  }

  /** Draws it if it would differ from what is there. */
  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const [from, to] = this.range();
    const scale = (width - LEFT - RIGHT) / (to - from);
    const ratio = devicePixelRatio || 1;
    const state = [this.history.version, Math.floor(to * scale), width, ratio, this.moment, this.word, to - from].join();
    if (state === this.drawn) return;
    this.drawn = state;
    const numbers = [...this.history.queues.keys()].sort((a, b) => a - b);
    const row = numbers.length <= 8 ? 22 : numbers.length <= 16 ? 17 : numbers.length <= 40 ? 11 : numbers.length <= 128 ? 6 : 3;
    const height = TOP + row * Math.max(1, numbers.length) + BOTTOM;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.palette ??= palette();
    const x = (at) => LEFT + (Math.max(from, Math.min(to, at)) - from) * scale;
    this.drawAxis(pen, { from, to, x, height });
    numbers.forEach((number, place) => this.drawRow(pen, { number, y: TOP + place * row, row, from, to, x }));
    this.drawPauses(pen, { from, to, x, height });
    const events = this.drawEvents(pen, { from, to, x, height });
    if (this.moment !== null) {
      pen.fillStyle = this.palette.ink;
      pen.fillRect(x(this.moment) - 1, TOP - 4, 2, height - TOP - BOTTOM + 8);
    }
    const count = (kind) => events.filter((one) => one.kind === kind).length;
    const label =
      `${numbers.length ? `Who served each ${this.word}` : "Events"} from ${clockText(from).slice(0, 5)} to ${clockText(to).slice(0, 5)}: ` +
      `${plural(count("moved"), "move")}, ${plural(count("crashed"), "crash", "crashes")}; listed below under Events`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
  }

  drawAxis(pen, { from, to, x, height }) {
    const { palette } = this;
    const width = x(to) - x(from);
    const every = TICKS_MS.find((one) => ((to - from) / one) * 74 < width) ?? 28800000;
    pen.font = `12px ${palette.font}`;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    for (let at = Math.ceil(from / every) * every; at <= to; at += every) {
      pen.fillStyle = palette.line;
      pen.fillRect(x(at), TOP - 3, 1, height - TOP - BOTTOM + 6);
      if (x(at) - LEFT < 16 || x(to) - x(at) < 22) continue;
      pen.fillStyle = palette.muted;
      pen.fillText(every < 60000 ? clockText(at) : clockText(at).slice(0, 5), x(at), height - 6);
    }
  }

  drawRow(pen, { number, y, row, from, to, x }) {
    const { palette } = this;
    const high = row > 8 ? row - 3 : row - (row > 4 ? 1 : 0);
    pen.font = `600 ${row > 12 ? 12 : 10}px ${palette.font}`;
    pen.textBaseline = "middle";
    if (row > 8) {
      pen.textAlign = "right";
      pen.fillStyle = palette.muted;
      pen.fillText(String(number), LEFT - 8, y + high / 2);
    }
    pen.textAlign = "left";
    for (const span of this.history.queues.get(number)) {
      const end = span.to ?? to;
      if (end < from || span.from > to) continue;
      const left = x(span.from);
      const width = Math.max(1, x(end) - left);
      const place = span.member === null ? null : this.colourOf(span.member);
      pen.fillStyle = place === null ? palette.bad : palette.members[place];
      if (place === null) pen.fillRect(left, y + high / 2 - 1, width, 2);
      else pen.fillRect(left, y, width, high);
      if (place === null) continue;
      pen.fillStyle = span.cause === "crash" ? palette.bad : palette.edges[place];
      if (span.from >= from) pen.fillRect(left, y, 3, high);
      const label = this.labelOf(span.member);
      if (row > 8 && pen.measureText(label).width + 10 < width) {
        pen.fillStyle = palette.ink;
        pen.fillText(label, left + 6, y + high / 2 + 0.5);
      }
    }
  }

  drawPauses(pen, { from, to, x, height }) {
    for (const [began, ended] of this.history.pauses(from, to)) {
      pen.save();
      pen.beginPath();
      pen.rect(x(began), TOP - 2, Math.max(2, x(ended) - x(began)), height - TOP - BOTTOM + 4);
      pen.clip();
      pen.strokeStyle = this.palette.muted;
      pen.lineWidth = 1.5;
      pen.beginPath();
      for (let at = x(began) - height; at < x(ended); at += 9) {
        pen.moveTo(at, height);
        pen.lineTo(at + height, 0);
      }
      pen.stroke();
      pen.restore();
    }
  }

  /** Signs above the rows: a cross for a crash, bars for a pause. */
  drawEvents(pen, { from, to, x, height }) {
    const events = this.history.between(from, to).filter(isMarked);
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    for (const one of events) {
      const sign = { crashed: "✖", paused: "‖", ingress_paused: "‖", resumed: "▸", ingress_resumed: "▸", joined: "+", left: "−" }[one.kind];
      if (!sign) continue;
      const isCrash = one.kind === "crashed";
      pen.font = `700 13px ${this.palette.font}`;
      pen.fillStyle = isCrash ? this.palette.bad : this.palette.muted;
      pen.fillText(sign, x(one.at), TOP - 5);
      if (isCrash) pen.fillRect(x(one.at) - 0.5, TOP - 3, 1, height - TOP - BOTTOM + 6);
    }
    return events;
  }
}

/** Colours of the style sheet, in the scheme of the moment. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const places = [0, 1, 2, 3, 4, 5, 6, 7];
  const names = ["ink", "muted", "line", "bad", "lag", "ready", "rate"];
  return {
    ...Object.fromEntries(names.map((name) => [name, colour(name)])),
    font: getComputedStyle(document.body).fontFamily,
    members: places.map((place) => colour(`m${place}`)),
    edges: places.map((place) => colour(`e${place}`)),
  };
}
