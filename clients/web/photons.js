/**
 * Joins what was sent, what the server applied and what was displayed, into control-to-photon times.
 *
 * Three streams come in, in any order: actions sent (seq, time), telemetry of chunks (rtp timestamp of the first frame,
 * applied seqs) and displayed frames (rtp timestamp, display time). A seq's photon is the *first displayed* frame that is not
 * older than its chunk's first frame. Knows no socket, no clock and no video element: times are arguments, in milliseconds.
 *
 *     sent      seq -> time                     kept until applied, at most KEEP
 *     chunks    rtp -> telemetry                the last KEEP of this peer
 *     shown     (rtp, time) in display order    the last KEEP of this peer
 */

const KEEP = 256;
const HALF = 2 ** 31;

/** Signed distance a - b of two 32-bit RTP timestamps, right across their wrap. */
export function rtpDistance(a, b) {
  const difference = (a - b) >>> 0;
  return difference >= HALF ? difference - 2 ** 32 : difference;
}

export class PhotonLedger {
  #sent = new Map();
  #chunks = [];
  #shown = [];
  #span;
  #tolerance;

  /** `span` is the RTP length of one chunk, in ticks of 90 kHz; a frame further on no longer belongs to it. */
  constructor(span) {
    this.#span = span;
    this.#tolerance = span * 8;
  }

  /** Note that action `seq` left at `timeMs`. */
  sent(seq, timeMs) {
    this.#sent.set(seq, timeMs);
    if (this.#sent.size > KEEP) this.#sent.delete(this.#sent.keys().next().value);
  }

  /** Forget the frames and chunks of a peer that is gone: a new one starts from another RTP timestamp. */
  newPeer() {
    this.#chunks = [];
    this.#shown = [];
  }

  /** Take in one chunk's telemetry; returns the photons that it settles (its frame was already displayed). */
  chunk(telemetry) {
    const entry = { telemetry, settled: false };
    this.#chunks.push(entry);
    if (this.#chunks.length > KEEP) this.#chunks.shift();
    const first = this.#shown.find((frame) => this.#covers(telemetry.rtp_ts, frame.rtp));
    return first === undefined ? [] : this.#settle(entry, first.timeMs);
  }

  /** Take in one displayed frame; returns its chunk's telemetry, if known, and the photons that it settles. */
  frame(rtp, timeMs) {
    this.#shown.push({ rtp, timeMs });
    if (this.#shown.length > KEEP) this.#shown.shift();
    const photons = [];
    let newest = null;
    for (const entry of this.#chunks) {
      if (!this.#covers(entry.telemetry.rtp_ts, rtp)) continue;
      photons.push(...this.#settle(entry, timeMs));
      if (newest === null || rtpDistance(entry.telemetry.rtp_ts, newest.rtp_ts) > 0) newest = entry.telemetry;
    }
    const within = newest !== null && rtpDistance(rtp, newest.rtp_ts) < this.#span;
    return { telemetry: within ? newest : null, photons };
  }

  #covers(chunkRtp, frameRtp) {
    const distance = rtpDistance(frameRtp, chunkRtp);
    return distance >= 0 && distance < this.#tolerance;
  }

  #settle(entry, timeMs) {
    if (entry.settled) return [];
    entry.settled = true;
    const photons = [];
    for (const seq of entry.telemetry.applied ?? []) {
      const sentMs = this.#sent.get(seq);
      if (sentMs === undefined) continue;
      this.#sent.delete(seq);
      photons.push({ seq, ms: timeMs - sentMs, sentMs, shownMs: timeMs, chunk: entry.telemetry.chunk });
    }
    return photons;
  }
}
