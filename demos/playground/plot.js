/**
 * A small plot of points over the last half minute, drawn crisply at any pixel density in the page's own colours.
 *
 * Knows no session: it is given series of `{timeMs, value}` and a reference value, and draws when asked.
 */

import { WINDOW_MS } from "./meters.js";

const AXIS = 30;

export class Plot {
  #canvas;
  #context;
  #width = 0;
  #height = 0;
  #style;

  constructor(canvas) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    this.#style = getComputedStyle(canvas);
    new ResizeObserver(() => this.#measure()).observe(canvas);
    this.#measure();
  }

  /**
   * Draw `lines` (the last is on top), each `{points, strong, joined}`, against `reference` (a dashed line, or null).
   * The scale starts at zero and holds the reference and nearly every point, so that one outlier does not flatten the rest.
   */
  draw(lines, { nowMs, reference, label }) {
    if (this.#width === 0) return;
    const context = this.#context;
    const top = scaleOf(lines, reference);
    const x = (timeMs) => this.#width - AXIS - ((nowMs - timeMs) / WINDOW_MS) * (this.#width - AXIS);
    const y = (value) => this.#height - 4 - (Math.min(value, top) / top) * (this.#height - 12);
    context.clearRect(0, 0, this.#width, this.#height);
    this.#grid(y, top, reference);
    for (const line of lines) this.#line(line, x, y, nowMs);
    this.#canvas.setAttribute("aria-label", label);
  }

  #measure() {
    const ratio = devicePixelRatio || 1;
    const { width, height } = this.#canvas.getBoundingClientRect();
    if (width === 0 || height === 0) return;
    this.#width = width;
    this.#height = height;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    this.#context.setTransform(this.#canvas.width / width, 0, 0, this.#canvas.height / height, 0, 0);
  }

  #colour(name) {
    return this.#style.getPropertyValue(name).trim();
  }

  #grid(y, top, reference) {
    const context = this.#context;
    const right = this.#width - AXIS;
    context.lineWidth = 1;
    context.font = `500 10px ${this.#style.getPropertyValue("--mono")}`;
    context.textBaseline = "middle";
    context.fillStyle = this.#colour("--muted");
    context.strokeStyle = this.#colour("--line");
    this.#rule(y(0), right, []);
    context.fillText("0", right + 6, y(0) - 1);
    const shown = reference ?? top / 2;
    context.strokeStyle = this.#colour("--muted");
    this.#rule(y(shown), right, [2, 4]);
    context.fillText(String(Math.round(shown)), right + 6, y(shown));
  }

  #rule(at, right, dash) {
    const context = this.#context;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(0, Math.round(at) + 0.5);
    context.lineTo(right, Math.round(at) + 0.5);
    context.stroke();
    context.setLineDash([]);
  }

  #line({ points, strong, joined }, x, y, nowMs) {
    const context = this.#context;
    const visible = points.filter((point) => point.timeMs >= nowMs - WINDOW_MS);
    context.strokeStyle = context.fillStyle = this.#colour(strong ? "--accent" : "--muted");
    context.globalAlpha = strong ? 1 : 0.55;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let previous = null;
    for (const point of visible) {
      const gap = previous === null || point.timeMs - previous.timeMs > 1500;
      if (joined && !gap) context.lineTo(x(point.timeMs), y(point.value));
      else context.moveTo(x(point.timeMs), y(point.value));
      previous = point;
    }
    if (joined) context.stroke();
    const dots = joined ? visible.slice(-1) : visible;
    for (const point of dots) {
      context.beginPath();
      context.arc(x(point.timeMs), y(point.value), joined ? 2.5 : 1.6, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }
}

function scaleOf(lines, reference) {
  const values = lines.flatMap((line) => line.points.map((point) => point.value)).sort((a, b) => a - b);
  const nearlyAll = values.length === 0 ? 0 : values[Math.floor(0.98 * (values.length - 1))];
  return Math.max(nearlyAll * 1.1, (reference ?? 0) * 1.5, 50);
}
