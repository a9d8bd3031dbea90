/**
 * What one pane measured: control-to-photon, chunk intervals and frames shown, over the last half minute.
 *
 * Pure over its inputs: times are arguments, in milliseconds. An interval counts only between neighbouring chunks of one epoch
 * that were both streamed: a pause or a reset is not a slow chunk.
 */

export const WINDOW_MS = 30000;
const FPS_WINDOW_MS = 2500;

/** Values with their times, the last WINDOW_MS of them. */
export class Series {
  #points = [];

  push(timeMs, value) {
    this.#points.push({ timeMs, value });
    const oldest = timeMs - WINDOW_MS;
    while (this.#points.length > 0 && this.#points[0].timeMs < oldest) this.#points.shift();
  }

  get points() {
    return this.#points;
  }

  /** The value below which `share` of the points within the window before `nowMs` lie; null if there is none. */
  quantile(share, nowMs) {
    const values = this.#points.filter((point) => point.timeMs >= nowMs - WINDOW_MS).map((point) => point.value);
    if (values.length === 0) return null;
    values.sort((a, b) => a - b);
    return values[Math.min(values.length - 1, Math.floor(share * values.length))];
  }
}

export class Meters {
  photons = new Series();
  intervals = new Series();
  #shown = [];
  #last = null;

  /** Take a `photon` event's detail. */
  photon({ shownMs, ms }) {
    this.photons.push(shownMs, ms);
  }

  /** Take a `frame` event's detail. */
  frame({ shownMs, telemetry }) {
    this.#shown.push(shownMs);
    while (this.#shown.length > 0 && this.#shown[0] < shownMs - FPS_WINDOW_MS) this.#shown.shift();
    if (telemetry === null) return;
    const last = this.#last;
    if (last !== null && last.epoch === telemetry.epoch && last.chunk === telemetry.chunk) return;
    if (last !== null && last.epoch === telemetry.epoch && telemetry.chunk > last.chunk) {
      this.intervals.push(shownMs, (shownMs - last.shownMs) / (telemetry.chunk - last.chunk));
    }
    this.#last = { epoch: telemetry.epoch, chunk: telemetry.chunk, shownMs };
  }

  /** The stream was interrupted on purpose: the next interval starts afresh. */
  interrupt() {
    this.#last = null;
  }

  /** Frames shown a second; null with fewer than two in the window. */
  fps(nowMs) {
    const recent = this.#shown.filter((timeMs) => timeMs >= nowMs - FPS_WINDOW_MS);
    if (recent.length < 2) return null;
    return ((recent.length - 1) * 1000) / (recent.at(-1) - recent[0]);
  }
}
