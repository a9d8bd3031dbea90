/**
 * One HTTP call with a timeout, a bearer token and typed errors. Knows no path and no session.
 */

import { errorFromResponse, makeError } from "./errors.js";

/**
 * Call `url` and return the parsed JSON body (null for 204) with the status.
 *
 * Throws Timeout after `timeoutMs`, Transport if the server cannot be reached, and the server's own refusal otherwise.
 * @returns {Promise<{status: number, body: any}>}
 */
export async function callJson(url, { method = "GET", body, token = null, timeoutMs = 10000, keepalive = false, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort("timeout"), timeoutMs);
  const forward = () => abort.abort("caller");
  signal?.addEventListener("abort", forward, { once: true });
  if (signal?.aborted) forward();
  try {
    const response = await fetch(url, {
      method,
      headers,
      keepalive,
      signal: abort.signal,
      cache: "no-store",
      credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (!response.ok) throw await errorFromResponse(response);
    const text = await response.text();
    return { status: response.status, body: text === "" ? null : JSON.parse(text) };
  } catch (error) {
    throw asRefusal(error, abort.signal, url, timeoutMs);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", forward);
  }
}

function asRefusal(error, signal, url, timeoutMs) {
  if (error?.code !== undefined && typeof error.code === "string") return error;
  const path = new URL(url).pathname;
  if (signal.aborted && signal.reason === "timeout") {
    return makeError("timeout", `No answer to ${path} within ${timeoutMs / 1000} s`, { cause: error });
  }
  if (signal.aborted) return makeError("transport", `The call to ${path} was given up`, { recoverable: false, cause: error });
  if (error instanceof SyntaxError) return makeError("transport", `The answer to ${path} is not JSON`, { cause: error });
  return makeError("transport", "The server cannot be reached", { cause: error });
}
