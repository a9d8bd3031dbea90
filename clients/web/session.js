/**
 * One session as the page sees it: attach a video element, act, reset, pause, fork, close; events say what happened.
 *
 * The session outlives its peers: when a connection is lost it makes a new one within the grace that the server keeps the slot
 * for, and says so with `connection` events. Live control goes over the peer's channels; what makes sessions or must also work
 * without a peer goes over HTTP.
 *
 *     connection:  idle -> queued -> connecting -> connected <-> reconnecting -> closed
 */

import { errorFromWire, makeError } from "./errors.js";
import { FrameThrottle, watchFrames } from "./display.js";
import { Peer } from "./peer.js";
import { PhotonLedger } from "./photons.js";

const CLOCK_HZ = 90000;
const POLL_MS = 1000;
const GRACE_MS = 20000;
const BACKOFF_MS = [250, 500, 1000, 2000, 3000];
const FINAL = new Set(["session_ended", "not_found", "unauthorized", "version_mismatch"]);

export class PhysisSession extends EventTarget {
  #call;
  #iceServers;
  #forget;
  #peer = null;
  #video = null;
  #stopWatching = null;
  #ledger;
  #throttle;
  #seq;
  #connection = "idle";
  #state;
  #epoch;
  #queuePosition;
  #endedReason = null;
  #lastTelemetry = null;

  /**
   * Made by `PhysisClient`; not by hand.
   * @param {any} wire the server's Session object, token included
   * @param {{world: any, call: Function, iceServers: () => Promise<RTCIceServer[]>, forget: (s: PhysisSession) => void,
   *   firstSeq?: number}} context
   */
  constructor(wire, { world, call, iceServers, forget, firstSeq = 0 }) {
    super();
    this.id = wire.id;
    this.token = wire.token ?? null;
    this.model = wire.model;
    this.mode = wire.mode;
    this.world = world;
    this.#call = call;
    this.#iceServers = iceServers;
    this.#forget = forget;
    this.#seq = firstSeq;
    this.#state = wire.state;
    this.#epoch = wire.epoch ?? 0;
    this.#queuePosition = wire.queue_position ?? 0;
    this.#ledger = new PhotonLedger(Math.round((CLOCK_HZ * world.chunk_frames) / world.fps));
    this.#throttle = new FrameThrottle((action) => this.#sendAction(action));
  }

  /** The server's name of the session's state: queued, starting, ready, streaming, paused, failed, ended. */
  get state() {
    return this.#state;
  }

  /** Where the connection stands: idle, queued, connecting, connected, reconnecting or closed. */
  get connection() {
    return this.#connection;
  }

  get epoch() {
    return this.#epoch;
  }

  /** 1 is next; 0 once admitted. */
  get queuePosition() {
    return this.#queuePosition;
  }

  /** Why the session is over; null while it lives. */
  get endedReason() {
    return this.#endedReason;
  }

  /** The newest telemetry, displayed or not; null before the first. */
  get lastTelemetry() {
    return this.#lastTelemetry;
  }

  /** The RTCPeerConnection in use, for `getStats()`; null without a peer. */
  get peerConnection() {
    return this.#peer?.connection ?? null;
  }

  /**
   * Show this session in `video` (muted, inline) and open the control channels. While the session is queued this waits and
   * `queue` events tell the position. Throws the server's refusal, Timeout or Transport; may be called again after that.
   */
  async attach(video) {
    this.#alive();
    this.#show(video);
    await this.#admitted();
    this.#moveTo("connecting");
    try {
      await this.#connect();
    } catch (error) {
      if (this.#endedReason === null) this.#moveTo("idle");
      throw error;
    }
  }

  /**
   * Steer: numbers within the world's bounds. At most one leaves per displayed frame and the latest wins, so this may be
   * called for every pointer event. Throws InvalidAction for a wrong length or a number that is not finite.
   */
  act(action) {
    const { dim, names } = this.world.action;
    const numbers = Array.from(action);
    if (numbers.length !== dim || !numbers.every((number) => Number.isFinite(number))) {
      throw makeError("invalid_action", `An action is ${dim} finite numbers (${names.join(", ")})`);
    }
    if (this.#endedReason === null) this.#throttle.push(numbers);
  }

  /** Change the prompt; resolves when the server has accepted it. */
  setPrompt(text) {
    return this.#ask("prompt", { event: ++this.#seq, text });
  }

  /** Begin again, from `seed` if given; nothing of the time before is shown afterwards. */
  async reset({ seed } = {}) {
    this.#throttle.clear();
    this.#take(await this.#either("reset", seed === undefined ? {} : { seed }));
  }

  async pause() {
    this.#take(await this.#either("pause"));
  }

  async resume() {
    this.#take(await this.#either("resume"));
  }

  /** Branch here and now. `fork()` gives one session, `fork(n)` an array; each continues from this very moment. */
  async fork(count) {
    this.#alive();
    const { body } = await this.#http("POST", "/fork", { count: count ?? 1 });
    const children = body.sessions.map(
      (wire) =>
        new PhysisSession(wire, {
          world: this.world,
          call: this.#call,
          iceServers: this.#iceServers,
          forget: this.#forget,
          firstSeq: this.#seq,
        }),
    );
    for (const child of children) this.dispatchEvent(new CustomEvent("forked", { detail: { session: child } }));
    return count === undefined ? children[0] : children;
  }

  /** Keep this moment; the answer is what `restore` takes. */
  async snapshot() {
    return (await this.#either("snapshot")).snapshot;
  }

  async restore(snapshot) {
    this.#throttle.clear();
    this.#take(await this.#either("restore", { snapshot }));
  }

  /** The engine's numbers now; they also come once a second as `stats` events. */
  async stats() {
    return (await this.#ask("stats")).stats;
  }

  /** End the session and free its slot. Safe to call twice; never throws. */
  async close() {
    if (this.#endedReason !== null) return;
    this.#finish("closed");
    await this.#http("DELETE", "", undefined, { keepalive: true }).catch(() => undefined);
  }

  /** End the session because its page goes away: the call outlives the page. */
  abandon() {
    if (this.#endedReason !== null) return;
    void this.#http("DELETE", "", undefined, { keepalive: true }).catch(() => undefined);
    this.#finish("page_closed");
  }

  // ---- connection -------------------------------------------------------------------------------------------------------

  async #connect() {
    const peer = new Peer({
      iceServers: await this.#iceServers(),
      on: {
        track: (stream) => this.#play(stream),
        event: (message) => this.#receive(message),
        telemetry: (message) => this.#receiveTelemetry(message),
        lost: (reason) => void this.#reconnect(reason),
      },
    });
    this.#alive(() => peer.close());
    this.#peer = peer;
    this.#ledger.newPeer();
    const hello = await peer.connect(async (offer) => (await this.#http("POST", "/webrtc", offer)).body);
    this.#alive(() => peer.close());
    if (typeof hello.state === "string") this.#setState(hello.state, hello.session?.epoch ?? this.#epoch);
    this.#moveTo("connected");
  }

  /** Make new peers until one stands or the grace is over; only then is the session ended. */
  async #reconnect(reason) {
    if (this.#endedReason !== null || this.#connection !== "connected") return;
    this.#moveTo("reconnecting", { reason, graceMs: GRACE_MS });
    const until = performance.now() + GRACE_MS;
    for (let attempt = 0; performance.now() < until; attempt += 1) {
      try {
        await this.#connect();
        return;
      } catch (error) {
        if (this.#endedReason !== null) return;
        if (FINAL.has(error.code)) return this.#finish(error.reason ?? "expired", error);
      }
      await sleep(BACKOFF_MS[Math.min(attempt, BACKOFF_MS.length - 1)]);
      if (this.#endedReason !== null) return;
    }
    this.#finish("connection_lost");
  }

  /** Wait in the queue, asking once a second. */
  async #admitted() {
    while (this.#state === "queued") {
      this.#moveTo("queued");
      this.#emit("queue", { position: this.#queuePosition });
      await sleep(POLL_MS);
      this.#alive();
      const { body } = await this.#http("GET", "").catch((error) => {
        if (FINAL.has(error.code)) this.#finish(error.reason ?? "expired", error);
        if (FINAL.has(error.code)) throw error;
        return { body: null };
      });
      if (body !== null) this.#take(body);
    }
    this.#alive();
  }

  #show(video) {
    this.#stopWatching?.();
    this.#video = video;
    video.muted = true;
    video.playsInline = true;
    this.#stopWatching = watchFrames(video, (frame) => this.#frameShown(frame));
  }

  #play(stream) {
    if (this.#video === null) return;
    this.#video.srcObject = stream;
    this.#video.play().catch(() => undefined);
  }

  #finish(reason, error = null) {
    if (this.#endedReason !== null) return;
    this.#endedReason = reason;
    this.#state = "ended";
    this.#peer?.close();
    this.#peer = null;
    this.#stopWatching?.();
    this.#forget(this);
    this.#moveTo("closed");
    this.#emit("ended", { reason, error });
  }

  // ---- what comes in ----------------------------------------------------------------------------------------------------

  #receive(message) {
    switch (message.event) {
      case "status":
        return this.#setState(message.state, message.epoch);
      case "queue":
        this.#queuePosition = message.position;
        return this.#emit("queue", { position: message.position });
      case "error":
        return this.#emit("error", { error: errorFromWire(message.error) });
      case "ended":
        return this.#finish(message.reason ?? "ended");
      default: {
        const { event, ...detail } = message;
        return this.#emit(event, detail);
      }
    }
  }

  #receiveTelemetry(telemetry) {
    this.#lastTelemetry = telemetry;
    this.#emit("telemetry", telemetry);
    if (!Number.isFinite(telemetry.rtp_ts)) return;
    for (const photon of this.#ledger.chunk(telemetry)) this.#emit("photon", photon);
  }

  #frameShown(frame) {
    const rtp = frame.rtp ?? this.#lastTelemetry?.rtp_ts ?? null;
    const { telemetry, photons } = rtp === null ? { telemetry: null, photons: [] } : this.#ledger.frame(rtp, frame.shownMs);
    this.#emit("frame", { ...frame, telemetry, photons });
    for (const photon of photons) this.#emit("photon", photon);
  }

  /** Take in a Session object, bare (HTTP) or inside an answer (control). */
  #take(answer) {
    const wire = answer.session ?? answer;
    if (typeof wire.queue_position === "number") this.#queuePosition = wire.queue_position;
    if (typeof wire.state === "string") this.#setState(wire.state, wire.epoch);
    if (wire.state === "ended") this.#finish(wire.ended_reason ?? "ended");
  }

  #setState(state, epoch) {
    if (this.#endedReason !== null) return;
    const changed = state !== this.#state || (epoch !== undefined && epoch !== this.#epoch);
    this.#state = state;
    if (epoch !== undefined) this.#epoch = epoch;
    if (changed) this.#emit("status", { state, epoch: this.#epoch });
  }

  #moveTo(connection, detail = {}) {
    if (this.#connection === connection || this.#connection === "closed") return;
    this.#connection = connection;
    this.#emit("connection", { connection, ...detail });
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  // ---- what goes out ----------------------------------------------------------------------------------------------------

  #sendAction(action) {
    const seq = ++this.#seq;
    const now = performance.now();
    if (!this.#peer?.act({ seq, t_client: now, action })) return;
    this.#ledger.sent(seq, now);
    this.#emit("sent", { seq, action, sentMs: now });
  }

  #ask(type, body = {}) {
    this.#alive();
    if (this.#peer === null) return Promise.reject(makeError("transport", "Attach the session first"));
    return this.#peer.request(type, body);
  }

  /** Over the control channel while it is open, else over HTTP; both answer alike. */
  async #either(type, body = {}) {
    this.#alive();
    if (this.#peer?.open) return this.#peer.request(type, body);
    return (await this.#http("POST", `/${type}`, body)).body;
  }

  #http(method, path, body, more = {}) {
    return this.#call(`/v1/sessions/${this.id}${path}`, { method, body, token: this.token, ...more });
  }

  #alive(otherwise = () => undefined) {
    if (this.#endedReason === null) return;
    otherwise();
    throw makeError("session_ended", "The session has ended", { recoverable: false, reason: this.#endedReason });
  }
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

