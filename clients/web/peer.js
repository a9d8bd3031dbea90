/**
 * One WebRTC peer of a session: three data channels, one video track, requests that are answered or time out.
 *
 * A peer lives once: when its connection is lost it reports so and is thrown away; the session makes another. Knows no HTTP
 * beyond the `negotiate` function that it is given, and nothing of reconnecting.
 */

import { errorFromWire, makeError } from "./errors.js";

const GATHER_MS = 3000;
const CONNECT_MS = 15000;
const ANSWER_MS = 10000;
const PING_MS = 2000;
const SILENT_MS = 6000;
const DISCONNECTED_MS = 2500;

export class Peer {
  #connection;
  #control;
  #actions;
  #telemetry;
  #waiting = new Map();
  #nextId = 1;
  #lost = false;
  #timers = new Set();
  #on;

  /**
   * @param {{iceServers: RTCIceServer[], on: {track: (stream: MediaStream, receiver: RTCRtpReceiver) => void,
   *   event: (message: any) => void, telemetry: (message: any) => void, lost: (reason: string) => void}}} options
   */
  constructor({ iceServers, on }) {
    this.#on = on;
    const connection = new RTCPeerConnection({ iceServers, bundlePolicy: "max-bundle" });
    this.#connection = connection;
    connection.addTransceiver("video", { direction: "recvonly" });
    this.#control = connection.createDataChannel("control", { ordered: true });
    this.#actions = connection.createDataChannel("actions", { ordered: false, maxRetransmits: 0 });
    this.#telemetry = connection.createDataChannel("telemetry", { ordered: false });
    connection.addEventListener("track", (event) => {
      playAtOnce(event.receiver);
      on.track(event.streams[0] ?? new MediaStream([event.track]), event.receiver);
    });
    connection.addEventListener("connectionstatechange", () => this.#watchConnection());
    this.#control.addEventListener("message", (event) => this.#receiveControl(event.data));
    this.#control.addEventListener("close", () => this.#lose("the control channel was closed"));
    this.#telemetry.addEventListener("message", (event) => {
      const message = parse(event.data);
      if (message !== null) on.telemetry(message);
    });
  }

  /**
   * Offer, take the answer that `negotiate(offer)` brings, wait for the control channel and greet.
   * Returns the server's hello; throws Timeout, Transport or what `negotiate` throws.
   */
  async connect(negotiate) {
    const opened = this.#openedControl();
    opened.catch(() => undefined);
    try {
      await this.#connection.setLocalDescription(await this.#connection.createOffer());
      await this.#gathered();
      const { sdp } = this.#connection.localDescription;
      const answer = await negotiate({ sdp, type: "offer" });
      if (this.#lost) throw makeError("transport", "The connection was given up");
      await this.#connection.setRemoteDescription({ sdp: answer.sdp, type: answer.type });
      await opened;
      const hello = await this.request("hello", { version: 1 });
      this.#beat();
      return hello;
    } catch (error) {
      this.close();
      throw typeof error?.code === "string" ? error : makeError("transport", String(error?.message ?? error), { cause: error });
    }
  }

  get open() {
    return !this.#lost && this.#control.readyState === "open";
  }

  /** The RTCPeerConnection, for statistics only. */
  get connection() {
    return this.#connection;
  }

  /** Ask on `control` and wait for the answer; throws the server's refusal, Timeout, or Transport when the peer goes. */
  request(type, body = {}, timeoutMs = ANSWER_MS) {
    if (!this.open) return Promise.reject(makeError("transport", "There is no connection to the session"));
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(id);
        reject(makeError("timeout", `No answer to "${type}" within ${timeoutMs / 1000} s`));
      }, timeoutMs);
      this.#waiting.set(id, { resolve, reject, timer });
      this.#control.send(JSON.stringify({ ...body, id, type }));
    });
  }

  /** Send one live action, or drop it if the channel is not open or choked; returns whether it left. */
  act(message) {
    if (this.#lost || this.#actions.readyState !== "open" || this.#actions.bufferedAmount > 4096) return false;
    this.#actions.send(JSON.stringify(message));
    return true;
  }

  /** Close without reporting a loss; safe to call twice. */
  close() {
    this.#lost = true;
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers.clear();
    for (const { reject, timer } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(makeError("transport", "The connection was closed before the answer came"));
    }
    this.#waiting.clear();
    this.#connection.close();
  }

  #lose(reason) {
    if (this.#lost) return;
    this.close();
    this.#on.lost(reason);
  }

  #later(run, ms) {
    if (this.#lost) return;
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      run();
    }, ms);
    this.#timers.add(timer);
  }

  #receiveControl(data) {
    const message = parse(data);
    if (message === null) return;
    if (message.re === undefined) {
      if (typeof message.event === "string") this.#on.event(message);
      return;
    }
    const waiting = this.#waiting.get(message.re);
    if (waiting === undefined) return;
    this.#waiting.delete(message.re);
    clearTimeout(waiting.timer);
    if (message.ok) waiting.resolve(message);
    else waiting.reject(errorFromWire(message.error));
  }

  #openedControl() {
    return new Promise((resolve, reject) => {
      this.#control.addEventListener("open", () => resolve(undefined), { once: true });
      this.#control.addEventListener("close", () => reject(makeError("transport", "The connection was refused")), { once: true });
      this.#later(() => reject(makeError("timeout", `No connection within ${CONNECT_MS / 1000} s`)), CONNECT_MS);
    });
  }

  /** Wait until candidates are gathered; a dead TURN server must not hold the offer back for longer than GATHER_MS. */
  #gathered() {
    const connection = this.#connection;
    if (connection.iceGatheringState === "complete") return Promise.resolve();
    return new Promise((resolve) => {
      connection.addEventListener("icegatheringstatechange", () => {
        if (connection.iceGatheringState === "complete") resolve(undefined);
      });
      this.#later(() => resolve(undefined), GATHER_MS);
    });
  }

  #watchConnection() {
    const state = this.#connection.connectionState;
    if (state === "failed" || state === "closed") this.#lose("the network path failed");
    if (state !== "disconnected") return;
    this.#later(() => {
      if (this.#connection.connectionState !== "connected") this.#lose("the network path went silent");
    }, DISCONNECTED_MS);
  }

  /** Ping while open; a server that is silent for SILENT_MS is lost, whatever ICE believes. */
  #beat() {
    this.#later(() => {
      this.request("ping", { t: performance.now() }, SILENT_MS).then(
        () => this.#beat(),
        (error) => (error.code === "timeout" ? this.#lose("the server stopped answering") : this.#beat()),
      );
    }, PING_MS);
  }
}

function parse(text) {
  try {
    const message = JSON.parse(text);
    return message !== null && typeof message === "object" ? message : null;
  } catch {
    return null;
  }
}

/** Ask the receiver to show frames as they come, under whichever name this browser knows. */
function playAtOnce(receiver) {
  if ("jitterBufferTarget" in receiver) receiver.jitterBufferTarget = 0;
  if ("playoutDelayHint" in receiver) receiver.playoutDelayHint = 0;
}
