/**
 * Reports each frame that a video element displays, with its RTP timestamp and the time of its display.
 *
 * Uses `requestVideoFrameCallback`; a browser without it gets one report per new media time, read on animation frames. Knows
 * no session. Times are those of `performance.now()`, in milliseconds.
 */

/** Call `report({shownMs, rtp, mediaTimeS, width, height})` for every frame displayed; returns a function that stops it. */
export function watchFrames(video, report) {
  return typeof video.requestVideoFrameCallback === "function" ? watchByCallback(video, report) : watchByClock(video, report);
}

function watchByCallback(video, report) {
  let running = true;
  let ticket = video.requestVideoFrameCallback(onFrame);
  function onFrame(now, metadata) {
    if (!running) return;
    ticket = video.requestVideoFrameCallback(onFrame);
    report({
      shownMs: Math.max(metadata.expectedDisplayTime || 0, metadata.presentationTime || 0) || now,
      rtp: Number.isFinite(metadata.rtpTimestamp) ? metadata.rtpTimestamp : null,
      mediaTimeS: metadata.mediaTime,
      receivedMs: Number.isFinite(metadata.receiveTime) ? metadata.receiveTime : null,
      width: metadata.width,
      height: metadata.height,
    });
  }
  return () => {
    running = false;
    video.cancelVideoFrameCallback(ticket);
  };
}

function watchByClock(video, report) {
  let last = -1;
  let ticket = requestAnimationFrame(onTick);
  function onTick(now) {
    ticket = requestAnimationFrame(onTick);
    if (video.readyState < 2 || video.currentTime === last) return;
    last = video.currentTime;
    report({ shownMs: now, rtp: null, mediaTimeS: last, receivedMs: null, width: video.videoWidth, height: video.videoHeight });
  }
  return () => cancelAnimationFrame(ticket);
}

/** Run `send` at most once per displayed frame: the first at once, then the latest value on each animation frame. */
export class FrameThrottle {
  #send;
  #pending = null;
  #armed = false;

  constructor(send) {
    this.#send = send;
  }

  /** Take a value; it leaves now if none left during this frame, else it replaces the one that waits. */
  push(value) {
    if (this.#armed) {
      this.#pending = value;
      return;
    }
    this.#send(value);
    this.#arm();
  }

  /** Forget the value that waits. */
  clear() {
    this.#pending = null;
  }

  #arm() {
    this.#armed = true;
    const next = () => {
      this.#armed = false;
      const value = this.#pending;
      this.#pending = null;
      if (value !== null) this.push(value);
    };
    if (document.visibilityState === "visible") requestAnimationFrame(next);
    else setTimeout(next, 16);
  }
}
