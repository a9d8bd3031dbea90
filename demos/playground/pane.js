/**
 * One pane: one session, its picture, its steering, its readouts and its tools.
 *
 * A pane outlives its sessions: when one ends, a new one may be started in the same place. It tells the page through `on`
 * what changed and what was asked of it; it knows no other pane.
 */

import { Meters } from "./meters.js";
import { Readouts } from "./readouts.js";
import { steeringFor } from "./steering.js";
import { Veil } from "./veil.js";
import * as words from "./words.js";

const STALL_MS = 3000;

export class Pane {
  meters = new Meters();
  session = null;
  #stats = null;
  #client;
  #world;
  #parts;
  #on;
  #veil;
  #steering = null;
  #readouts = null;
  #generation = 0;
  #waiting = null;
  #steered = false;
  #origin = null;
  #chunkAtMs = null;
  #targetFollows = true;
  #seed;

  /**
   * @param {{client: any, world: any, template: HTMLTemplateElement, letter: string, seed?: number, on: {change: () => void,
   *   activate: (pane: Pane) => void, fork: (pane: Pane) => void, close: (pane: Pane) => void, scale: () => void,
   *   token: (token: string) => void, tell: (text: string) => void}}} options
   */
  constructor({ client, world, template, letter, seed = 0, on }) {
    this.#client = client;
    this.#world = world;
    this.#on = on;
    this.#seed = seed;
    this.element = template.content.firstElementChild.cloneNode(true);
    this.#parts = Object.fromEntries([...this.element.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
    this.#veil = new Veil(this.#parts, (verb, value) => this.#choose(verb, value));
    this.letter = letter;
    this.#listen();
    this.#dress();
  }

  get world() {
    return this.#world;
  }

  get stage() {
    return this.#parts.stage;
  }

  set letter(letter) {
    this.#parts.letter.textContent = letter;
    this.element.setAttribute("aria-label", `Pane ${letter}`);
  }

  get letter() {
    return this.#parts.letter.textContent;
  }

  /** Whether chunks should be coming and are not; pictures alone prove nothing, a server repeats the last one on request. */
  get stalled() {
    return this.session?.state === "streaming" && this.#chunkAtMs !== null && performance.now() - this.#chunkAtMs > STALL_MS;
  }

  get link() {
    return words.linkOf({
      connection: this.session?.connection ?? "idle",
      state: this.session?.state,
      stalled: this.stalled,
      waiting: this.#waiting,
    });
  }

  /** The engine's numbers as this pane's session brings them; null while it brings none. */
  get stats() {
    return this.session?.connection === "connected" ? this.#stats : null;
  }

  /** Whether a fork can be asked for now. */
  get canFork() {
    return this.session?.connection === "connected" && ["streaming", "paused", "ready"].includes(this.session.state);
  }

  /** Open a session of the pane's world and show it; refusals are shown, not thrown. */
  async open() {
    const generation = ++this.#generation;
    this.#origin = null;
    this.#wait(words.opening(), "Opening");
    await this.session?.close();
    try {
      const session = await this.#client.openSession({ model: this.#world.name, seed: this.#seed });
      if (generation !== this.#generation) return void session.close();
      await this.#follow(session, generation);
    } catch (error) {
      this.#refuse(error, generation);
    }
  }

  /** Show a session that exists already: a fork. `action` is where its parent's target was, `origin` says whence it came. */
  async adopt(session, action, origin) {
    const generation = ++this.#generation;
    this.#origin = origin;
    this.#steering?.place(action);
    this.#wait(words.forking(), "Branching");
    try {
      await this.#follow(session, generation);
    } catch (error) {
      this.#refuse(error, generation);
    }
  }

  /** Change to another world: the session of the old one ends. */
  async change(world) {
    this.#world = world;
    this.#dress();
    await this.open();
  }

  /** End the pane's session and take the pane off the page. */
  async dispose() {
    this.#generation += 1;
    this.#steering?.dispose();
    this.element.remove();
    await this.session?.close();
  }

  /** Show `words` instead of a world, with nothing behind. */
  say(sheet) {
    this.#waiting = null;
    this.#veil.show(sheet);
    this.#refresh();
  }

  async togglePause() {
    const paused = this.session?.state === "paused";
    await this.#attempt(paused ? "go on" : "pause", () => (paused ? this.session.resume() : this.session.pause()));
    this.meters.interrupt();
  }

  async reset() {
    const seed = this.#readSeed();
    await this.#attempt("reset", () => this.session.reset({ seed }));
    this.#origin = null;
    this.meters.interrupt();
    this.#targetFollows = true;
  }

  /** Branch the session; returns it, the target's place and words for where it branched, or null if that was refused. */
  async fork() {
    let session = null;
    await this.#attempt("fork", async () => {
      session = await this.session.fork();
    });
    if (session === null) return null;
    const chunk = this.session.lastTelemetry?.chunk;
    return { session, action: this.#steering.action, origin: `from ${this.letter}${chunk === undefined ? "" : `, chunk ${chunk}`}` };
  }

  steerKey(code, down, fast) {
    return this.#steering?.key(code, down, fast) ?? false;
  }

  releaseKeys() {
    this.#steering?.release();
  }

  /** Say whether this is the pane that keys and the side column belong to, and whether a fork has a place to go. */
  mark({ active, forkable, smooth }) {
    this.element.classList.toggle("active", active);
    this.#parts.fork.disabled = !forkable || !this.canFork;
    this.#parts.scale.setAttribute("aria-pressed", String(smooth));
    this.#parts.scale.querySelector("use").setAttribute("href", smooth ? "#i-smooth" : "#i-crisp");
  }

  // ---- session ----------------------------------------------------------------------------------------------------------

  async #follow(session, generation) {
    this.session = session;
    this.#targetFollows = true;
    this.#chunkAtMs = null;
    this.meters.interrupt();
    const hear = (type, hearer) =>
      session.addEventListener(type, (event) => {
        if (generation === this.#generation) hearer(event.detail ?? {});
      });
    hear("queue", ({ position }) => this.#wait(words.queued(position), "In line"));
    hear("connection", (detail) => this.#connectionMoved(detail));
    hear("status", () => this.#stateMoved());
    hear("ended", ({ reason }) => this.say(words.ended(reason)));
    hear("error", ({ error }) => this.#trouble(error));
    hear("recovered", () => this.#recover("The engine lost this world for a moment and brought it back."));
    hear("telemetry", (telemetry) => this.#telemetryCame(telemetry));
    hear("photon", (photon) => this.meters.photon(photon));
    hear("frame", (frame) => this.#frameShown(frame));
    hear("stats", (stats) => {
      this.#stats = stats;
    });
    await session.attach(this.#parts.video);
    this.#waiting = null;
    this.#veil.hide();
    this.#stateMoved();
  }

  #connectionMoved({ connection, reason }) {
    if (connection === "connecting" && this.#waiting !== "Branching") this.#wait(words.connecting(), "Connecting");
    if (connection === "reconnecting" || connection === "closed") delete this.#parts.stage.dataset.live;
    if (connection === "reconnecting") this.#wait(words.reconnecting(reason), "Reconnecting");
    if (connection === "connected") {
      this.#waiting = null;
      this.#veil.hide();
      this.meters.interrupt();
    }
    this.#stateMoved();
  }

  /** The engine's own death covers the picture until chunks come again; any other failure is told in passing. */
  #trouble(error) {
    if (error.code === "engine_down") this.#wait(words.troubled(), "Engine down");
    else this.#on.tell(error.message);
  }

  #recover(text) {
    if (this.#waiting === "Engine down") this.#waiting = null;
    this.#on.tell(text);
    this.#stateMoved();
  }

  #telemetryCame(telemetry) {
    this.#chunkAtMs = performance.now();
    if (this.#targetFollows) this.#steering?.place(telemetry.action);
    this.#readouts?.show(telemetry);
    if (this.#waiting !== "Engine down") return;
    this.#waiting = null;
    this.#stateMoved();
  }

  #stateMoved() {
    if (this.#chunkAtMs !== null) this.#chunkAtMs = performance.now();
    if (this.session?.state === "failed") this.#veil.show(words.failed());
    else if (this.#waiting === null && this.session?.connection === "connected") this.#veil.hide();
    this.#refresh();
  }

  #frameShown(frame) {
    this.meters.frame(frame);
    this.#keepStill();
    if (this.#parts.stage.dataset.live === undefined) {
      this.#parts.stage.dataset.live = "";
      this.#refresh();
    }
  }

  /** Keep a copy of the picture: it stays when the connection, and the video with it, goes. */
  #keepStill() {
    const { video, still } = this.#parts;
    if (still.width !== video.videoWidth || still.height !== video.videoHeight) {
      still.width = video.videoWidth;
      still.height = video.videoHeight;
    }
    still.getContext("2d").drawImage(video, 0, 0);
  }

  #refuse(error, generation) {
    if (generation !== this.#generation) return;
    if (this.session?.endedReason && error.code === "session_ended") return;
    void this.session?.close();
    this.say(words.refused(error));
  }

  #wait(sheet, waiting) {
    this.#waiting = waiting;
    this.#veil.show(sheet);
    this.#refresh();
  }

  /** Run a command of the connected session; a refusal is told, and nothing else happens. */
  async #attempt(verb, run) {
    if (this.session?.connection !== "connected") return;
    try {
      await run();
    } catch (error) {
      this.#on.tell(`Could not ${verb}: ${error.message}`);
    }
    this.#refresh();
  }

  #choose(verb, value) {
    if (verb === "token") {
      this.#on.token(value);
      if (this.#world !== null) void this.open();
      return;
    }
    if (verb === "leave") {
      this.#generation += 1;
      void this.session?.close();
      return this.say(words.left());
    }
    if (verb === "reset") return void this.reset();
    if (this.#world === null) return location.reload();
    return void this.open();
  }

  // ---- page -------------------------------------------------------------------------------------------------------------

  #listen() {
    const { pause, reset, fork, close, scale, dice, stage, prompt } = this.#parts;
    pause.addEventListener("click", () => void this.togglePause());
    reset.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.reset();
    });
    reset.elements.seed.value = String(this.#seed);
    dice.addEventListener("click", () => {
      reset.elements.seed.value = String(Math.floor(Math.random() * 10000));
      void this.reset();
    });
    fork.addEventListener("click", () => this.#on.fork(this));
    close.addEventListener("click", () => this.#on.close(this));
    scale.addEventListener("click", () => this.#on.scale());
    this.element.addEventListener("pointerdown", () => this.#on.activate(this));
    this.element.addEventListener("focusin", () => this.#on.activate(this));
    stage.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && this.#on.activate(this));
    prompt.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#attempt("send the prompt", () => this.session.setPrompt(prompt.elements.prompt.value));
    });
  }

  /** Fit the pane to its world: shape, steering, readouts. */
  #dress() {
    const { stage, prompt, readouts } = this.#parts;
    this.#steering?.dispose();
    this.#steering = null;
    delete stage.dataset.live;
    Object.assign(this.#parts.still, { width: 2, height: 2 });
    if (this.#world === null) return;
    stage.style.aspectRatio = `${this.#world.width} / ${this.#world.height}`;
    this.#steering = steeringFor(this.#world, this.#parts, (action) => this.#act(action));
    this.#readouts = new Readouts(readouts, this.#world);
    prompt.hidden = !this.#world.accepts_prompt;
    stage.setAttribute("aria-label", `${this.#world.title}. ${this.#steering.hint}, or use the arrow keys.`);
  }

  #act(action) {
    if (this.session?.connection !== "connected" || this.session.state === "failed") return;
    this.#targetFollows = false;
    this.session.act(action);
    if (!this.#steered) {
      this.#steered = true;
      this.#refresh();
    }
  }

  #refresh() {
    const { pause, hint, state, reticle } = this.#parts;
    const live = this.session?.connection === "connected" && !this.#veil.covered;
    const paused = live && this.session.state === "paused";
    pause.disabled = !live;
    pause.querySelector("span").textContent = paused ? "Go on" : "Pause";
    pause.querySelector("use").setAttribute("href", paused ? "#i-play" : "#i-pause");
    for (const control of this.#parts.reset.elements) control.disabled = !(live || this.session?.state === "failed");
    hint.hidden = !paused && !(live && !this.#steered && this.#parts.stage.dataset.live !== undefined);
    hint.textContent = paused ? "Paused" : (this.#steering?.hint ?? "");
    this.element.classList.toggle("paused", paused);
    reticle.toggleAttribute("hidden", !live || this.#world.action.dim !== 2);
    state.textContent = this.#origin === null ? this.link.text : `${this.link.text} · ${this.#origin}`;
    this.#on.change();
  }

  #readSeed() {
    const seed = Number.parseInt(this.#parts.reset.elements.seed.value, 10);
    const valid = Number.isSafeInteger(seed) && seed >= 0 ? seed : 0;
    this.#parts.reset.elements.seed.value = String(valid);
    this.#seed = valid;
    return valid;
  }
}
