/**
 * The browser client of physis_stream: plain ES modules, no dependencies, no build.
 *
 *     import { PhysisClient } from "/client/physis.js";
 *     const client = new PhysisClient();
 *     const session = await client.openSession({ model: "pusht", seed: 0 });
 *     session.addEventListener("photon", ({ detail }) => console.log(detail.ms));
 *     await session.attach(document.querySelector("video"));
 *     session.act([256, 256]);
 *
 * Opening, listing and asking over HTTP is here; what happens in a session is in `session.js`. When the page goes away its
 * sessions are ended with it, so that a refresh never leaves a slot taken.
 */

import { callJson } from "./http.js";
import { makeError } from "./errors.js";
import { PhysisSession } from "./session.js";

export {
  Capacity,
  InvalidAction,
  InvalidState,
  NotFound,
  PhysisError,
  SessionEnded,
  Timeout,
  TooLarge,
  Transport,
  Unauthorized,
  VersionMismatch,
} from "./errors.js";
export { PhysisSession };

/** The wire protocol that this client speaks. */
export const PROTOCOL_VERSION = 1;

export class PhysisClient {
  #token;
  #timeoutMs;
  #sessions = new Set();
  #worlds = null;

  /**
   * @param {string | URL} [baseUrl] the server; the page's own origin if left out
   * @param {{token?: string | null, timeoutMs?: number}} [options]
   */
  constructor(baseUrl = location.origin, { token = null, timeoutMs = 10000 } = {}) {
    this.baseUrl = new URL(baseUrl, location.href).origin;
    this.#token = token;
    this.#timeoutMs = timeoutMs;
    addEventListener("pagehide", () => this.abandon());
  }

  /** Use this bearer token from now on. */
  set token(token) {
    this.#token = token;
  }

  /** The sessions that this client opened or forked and that have not ended. */
  get sessions() {
    return [...this.#sessions];
  }

  /** List the worlds that the server offers. */
  async models() {
    const { body } = await this.#call("/v1/models");
    this.#worlds = body.models;
    return body.models;
  }

  /** The engine's numbers, without a session. */
  async stats() {
    return (await this.#call("/v1/stats")).body;
  }

  /**
   * Open a session. The world starts moving with `attach`; a full server answers with a place in the queue (`state` is
   * "queued") unless `wait` is false, or refuses with Capacity and `retryAfterS`.
   */
  async openSession({ model, seed, mode = "realtime", wait = true, signal } = {}) {
    const world = (this.#worlds ?? (await this.models())).find((candidate) => candidate.name === model);
    if (world === undefined) throw makeError("not_found", `There is no world named "${model}" here`, { recoverable: false });
    const body = { model, mode, wait, ...(seed === undefined ? {} : { seed }) };
    const answer = await this.#call("/v1/sessions", { method: "POST", body, signal, timeoutMs: 30000 });
    const session = new PhysisSession(answer.body, {
      world,
      call: (path, options) => this.#call(path, options),
      iceServers: () => this.#iceServers(answer.body.token),
      forget: (ended) => this.#sessions.delete(ended),
    });
    this.#keep(session);
    return session;
  }

  /** End every session of this client at once, with calls that outlive the page. */
  abandon() {
    for (const session of this.sessions) session.abandon();
  }

  #keep(session) {
    this.#sessions.add(session);
    session.addEventListener("forked", (event) => this.#keep(event.detail.session));
  }

  async #iceServers(token) {
    try {
      const { body } = await this.#call("/v1/ice_servers", { token });
      return body.ice_servers;
    } catch (error) {
      if (error.code === "not_found") return [];
      throw error;
    }
  }

  #call(path, options = {}) {
    return callJson(this.baseUrl + path, { timeoutMs: this.#timeoutMs, ...options, token: options.token ?? this.#token });
  }
}
