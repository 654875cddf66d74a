/** Charts of lag and rate, drawn by uPlot (static/vendor/uplot). */

import { byId, clockText, compactText, countText, rateText } from "./dom.js";
import { palette } from "./timeline.js";

const HEIGHT = 190;

export class Charts {
  /** `onMoment` receives a moment that is clicked. */
  constructor(history, onMoment) {
    this.history = history;
    this.onMoment = onMoment;
    this.moment = null;
    this.drawn = "";
    this.make();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
    const resized = new ResizeObserver(() => {
      for (const chart of this.charts) chart.setSize({ width: widthOf(chart.root.parentElement), height: HEIGHT });
    });
    for (const id of ["lag", "rate"]) resized.observe(byId(id));
  }

  make() {
    for (const chart of this.charts ?? []) chart.destroy();
    this.colours = palette();
    this.drawn = "";
    const { lag, ready, rate } = this.colours;
    this.charts = [
      this.chart(byId("lag"), [
        { label: "ready", stroke: ready, fill: `${ready}22`, width: 1.5, value: this.shown(countText) },
        { label: "unacked", stroke: lag, width: 1.5, dash: [5, 3], value: this.shown(countText) },
      ]),
      this.chart(byId("rate"), [
        { label: "finished", stroke: rate, fill: `${rate}22`, width: 1.5, value: this.shown(rateText) },
        { label: "published", stroke: lag, width: 1.5, dash: [5, 3], value: this.shown(rateText) },
      ]),
    ];
  }

  /** Text of a series at the pointer, at the chosen moment, or now. */
  shown(text) {
    return shownText(text, () => (this.moment === null ? this.history.points.at.length - 1 : this.history.pointAt(this.moment)));
  }

  chart(parent, series) {
    const { muted, line, font } = this.colours;
    const axis = { stroke: muted, font: `12px ${font}`, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const chart = new window.uPlot(
      {
        width: widthOf(parent),
        height: HEIGHT,
        ms: 1,
        cursor: { sync: { key: "lbg" }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
        scales: { x: { time: true, auto: false }, y: { range: (_, low, high) => [0, Math.max(4, (high ?? 0) * 1.08)] } },
        axes: [
          { ...axis, space: 74, values: (_, times) => times.map(axisText) },
          { ...axis, size: 52, values: (_, counts) => counts.map(compactText) },
        ],
        series: [{ label: "at", value: this.shown(clockText) }, ...series],
        hooks: { draw: [(drawn) => this.mark(drawn)] },
      },
      [[], ...series.map(() => [])],
      parent,
    );
    chart.over.addEventListener("click", (event) => this.onMoment(chart.posToVal(event.offsetX, "x")));
    const canvas = chart.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${series.map((one) => one.label).join(" and ")} over time; the numbers stand above`);
    return chart;
  }

  /** The points between two times, and the chosen moment. */
  show([from, to], moment) {
    const { at, ready, unacked, rate, publish_rate: published } = this.history.points;
    const shown = moment === null ? at.length - 1 : this.history.pointAt(moment);
    const state = [at.length, at[at.length - 1], Math.round(from / 1000), Math.round(to / 1000), moment].join();
    if (state === this.drawn) return;
    this.drawn = state;
    this.moment = moment;
    [[at, ready, unacked], [at, rate, published]].forEach((points, place) => {
      this.charts[place].batch(() => {
        this.charts[place].setData(points, false);
        this.charts[place].setScale("x", { min: from, max: to });
        if (this.charts[place].cursor.idx === null) this.charts[place].setLegend({ idx: shown < 0 ? null : shown });
      });
    });
  }

  /** The chosen moment, and a line for each crash. */
  mark(chart) {
    const { left, top, width, height } = chart.bbox;
    const { min, max } = chart.scales.x;
    const crashes = this.history.between(min ?? 0, max ?? 0).filter((one) => one.kind === "crashed");
    const marks = crashes.map((one) => [one.at, this.colours.bad]);
    if (this.moment !== null) marks.push([this.moment, this.colours.ink]);
    for (const [at, colour] of marks) {
      const x = chart.valToPos(at, "x", true);
      if (x < left || x > left + width) continue;
      chart.ctx.fillStyle = colour;
      chart.ctx.fillRect(x - devicePixelRatio / 2, top, devicePixelRatio * 1.5, height);
    }
  }
}

/** The text of a value at the pointer, or else at the chosen moment, or of the last one. */
const shownText = (text, placeOf) => (chart, value, series, place) => {
  const shown = place ?? placeOf();
  return chart.data[series].length && shown >= 0 ? text(chart.data[series][shown]) : "-";
};

/** Minutes, with seconds where a chart is as fine; a time of the axis is exact to some milliseconds. */
function axisText(at) {
  const rounded = Math.round(at / 1000) * 1000;
  return clockText(rounded).slice(0, rounded % 60000 ? 8 : 5);
}

const widthOf = (node) => Math.max(200, node.clientWidth);
