/**
 * Refusals as types: what the server says in `{code, message, recoverable, retry_after_s, request_id}`, and what a browser
 * can notice by itself (a timeout, a lost connection). Knows no session and no socket.
 */

/** Base of all refusals. `code` is the wire's stable name; `message` is for people. */
export class PhysisError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{recoverable?: boolean, retryAfterS?: number | null, requestId?: string | null, reason?: string | null,
   *   status?: number, cause?: unknown}} [more]
   */
  constructor(code, message, more = {}) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = this.constructor.name;
    this.code = code;
    this.recoverable = more.recoverable ?? true;
    this.retryAfterS = more.retryAfterS ?? null;
    this.requestId = more.requestId ?? null;
    this.reason = more.reason ?? null;
    this.status = more.status ?? 0;
  }
}

export class Unauthorized extends PhysisError {}
export class InvalidAction extends PhysisError {}
export class InvalidState extends PhysisError {}
export class NotFound extends PhysisError {}
export class Capacity extends PhysisError {}
export class Timeout extends PhysisError {}
export class Transport extends PhysisError {}
/** The session is over; `reason` says why. */
export class SessionEnded extends PhysisError {}
export class TooLarge extends PhysisError {}
export class VersionMismatch extends PhysisError {}

const FAMILIES = {
  unauthorized: Unauthorized,
  invalid_action: InvalidAction,
  invalid_state: InvalidState,
  not_found: NotFound,
  capacity: Capacity,
  timeout: Timeout,
  transport: Transport,
  engine_down: Transport,
  session_ended: SessionEnded,
  too_large: TooLarge,
  version_mismatch: VersionMismatch,
};

const BY_STATUS = {
  401: "unauthorized",
  403: "unauthorized",
  404: "not_found",
  409: "invalid_state",
  410: "session_ended",
  413: "too_large",
  429: "capacity",
  503: "engine_down",
  504: "timeout",
};

/** Make the error of `code`'s family; unknown codes make a plain PhysisError, so that a newer server stays readable. */
export function makeError(code, message, more = {}) {
  const Family = Object.hasOwn(FAMILIES, code) ? FAMILIES[code] : PhysisError;
  return new Family(code, message, more);
}

/** Read the wire's error object; whatever is missing or of the wrong type falls back to a default. */
export function errorFromWire(body, more = {}) {
  const wire = body !== null && typeof body === "object" ? body : {};
  const text = (value) => (typeof value === "string" && value !== "" ? value : null);
  const code = text(wire.code) ?? "internal";
  return makeError(code, text(wire.message) ?? text(wire.detail) ?? text(wire.title) ?? "The server gave no reason", {
    recoverable: typeof wire.recoverable === "boolean" ? wire.recoverable : true,
    retryAfterS: Number.isFinite(wire.retry_after_s) ? wire.retry_after_s : null,
    requestId: text(wire.request_id),
    reason: text(wire.reason),
    ...more,
  });
}

/** Read a failed HTTP response: its problem+json body, or the status alone if a proxy answered in its place. */
export async function errorFromResponse(response) {
  const header = Number(response.headers.get("Retry-After"));
  const retryAfterS = Number.isFinite(header) && header > 0 ? header : null;
  let body = null;
  try {
    body = await response.json();
  } catch {
    body = null;
  }
  if (body === null || typeof body.code !== "string") {
    const code = BY_STATUS[response.status] ?? (response.status >= 500 ? "internal" : "invalid_request");
    const message = body?.detail ?? body?.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
    return makeError(code, String(message), { retryAfterS, status: response.status });
  }
  const error = errorFromWire(body, { status: response.status });
  error.retryAfterS ??= retryAfterS;
  return error;
}
