/**
 * The side column: what the world is, what was measured in the active pane, and how the engine is doing.
 *
 * It is redrawn from the panes' present facts a few times a second and keeps nothing itself.
 */

import { Plot } from "./plot.js";

const MOST_SEATS = 40;

export class Rail {
  #by;
  #photonPlot;
  #intervalPlot;
  #seats = "";

  /** `by(id)` finds an element of the page. */
  constructor(by) {
    this.#by = by;
    this.#photonPlot = new Plot(by("photon-plot"));
    this.#intervalPlot = new Plot(by("interval-plot"));
  }

  /** Introduce a world. */
  describe(world) {
    this.#by("title").textContent = world.title;
    this.#by("description").textContent = world.description;
    const steps = world.num_steps === 1 ? "1 step" : `${world.num_steps} steps`;
    const facts = [`${world.width} × ${world.height}`, `${world.fps} fps`, `${world.discipline.replaceAll("_", " ")}, ${steps}`];
    if (world.chunk_frames > 1) facts.push(`${world.chunk_frames} frames a chunk`);
    this.#by("facts").replaceChildren(...facts.map((fact) => Object.assign(document.createElement("li"), { textContent: fact })));
  }

  /** Draw the meters of `panes`, `active` on top and in figures. */
  draw(panes, active, nowMs) {
    const world = active.world;
    const chunkMs = world === null ? null : (1000 * world.chunk_frames) / world.fps;
    const ordered = [...panes.filter((pane) => pane !== active), active];
    const of = (series) => ordered.map((pane) => ({ points: pane.meters[series].points, strong: pane === active }));
    this.#meter("photon", active.meters.photons, nowMs);
    this.#meter("interval", active.meters.intervals, nowMs);
    this.#photonPlot.draw(of("photons").map((line) => ({ ...line, joined: false })), {
      nowMs,
      reference: chunkMs,
      label: this.#spoken("Control to photon", active.meters.photons, nowMs),
    });
    this.#intervalPlot.draw(of("intervals").map((line) => ({ ...line, joined: true })), {
      nowMs,
      reference: chunkMs,
      label: this.#spoken("Chunk interval", active.meters.intervals, nowMs),
    });
    this.#put("fps-value", active.meters.fps(nowMs), 1);
  }

  /** Show the engine's numbers; `mine` is how many of its sessions belong to this page. */
  engine(stats, mine) {
    this.#put("e-rows", stats.batch_rows_mean, 1);
    this.#by("e-tick").textContent = Number.isFinite(stats.tick_ms_p50) ? `${stats.tick_ms_p50.toFixed(1)} ms` : "–";
    this.#put("e-streaming", stats.streaming, 0);
    this.#put("e-queued", stats.queued, 0);
    this.#takeSeats(stats, mine);
  }

  /** The engine cannot be asked. */
  noEngine() {
    for (const id of ["e-rows", "e-tick", "e-streaming", "e-queued"]) this.#by(id).textContent = "–";
    this.#seats = "";
    this.#by("seats").replaceChildren();
    this.#by("seats-note").textContent = "Its numbers cannot be had";
  }

  #takeSeats({ sessions, max_sessions: places }, mine) {
    if (!Number.isFinite(sessions)) return;
    const key = `${sessions}/${places}/${mine}`;
    if (key === this.#seats) return;
    this.#seats = key;
    const drawn = Math.min(Math.max(places ?? sessions, sessions), MOST_SEATS);
    const dots = Array.from({ length: drawn }, (_, index) => {
      const dot = document.createElement("i");
      if (index < Math.min(mine, sessions)) dot.className = "mine";
      else if (index < sessions) dot.className = "taken";
      return dot;
    });
    const subject = sessions === 0 ? "Nobody uses it now" : sessions === 1 ? "One session has it alone" : `${sessions} sessions share it`;
    const text = `${subject}${places ? `, ${places} places` : ""}`;
    this.#by("seats").replaceChildren(...dots);
    this.#by("seats").setAttribute("aria-label", text);
    this.#by("seats-note").textContent = text;
  }

  #meter(name, series, nowMs) {
    this.#put(`${name}-value`, series.quantile(0.5, nowMs), 0);
    this.#put(`${name}-p95`, series.quantile(0.95, nowMs), 0);
  }

  #spoken(name, series, nowMs) {
    const half = series.quantile(0.5, nowMs);
    return half === null ? `${name}: no measurement yet` : `${name}: median ${Math.round(half)} ms over the last half minute`;
  }

  #put(id, value, digits) {
    const text = Number.isFinite(value) ? value.toFixed(digits) : "–";
    if (this.#by(id).textContent !== text) this.#by(id).textContent = text;
  }
}
