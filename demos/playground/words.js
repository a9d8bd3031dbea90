/**
 * What the page says when it cannot simply show a world: each state and refusal in plain words, with the way on.
 *
 * Pure: takes facts, returns `{title, text, wave?, number?, form?, actions: [[label, verb]], retryInS?}`. Verbs are those that
 * `Pane` knows: retry, restart, reset, resume, leave.
 */

const REASONS = {
  closed: "You closed it.",
  page_closed: "The page was left, and its session ended with it.",
  connection_lost: "The connection was gone for longer than the server keeps a place.",
  "the client vanished": "The connection was gone for longer than the server keeps a place.",
  "nobody came": "Nobody connected to it in time, so its place was given to others.",
  expired: "It was left alone for longer than the server keeps a place.",
  "the server is going down": "The server is shutting down.",
  "server stopped": "The server is shutting down.",
};

export function opening() {
  return { title: "Opening a world", text: "", wave: true, actions: [] };
}

export function connecting() {
  return { title: "Connecting", text: "Setting up the picture and the controls.", wave: true, actions: [] };
}

export function forking() {
  return { title: "Branching", text: "This pane goes on from the same moment.", wave: true, actions: [] };
}

export function queued(position) {
  return {
    title: position === 1 ? "You are next" : "You are in line",
    text: "Every place is taken. Yours opens by itself as soon as one is free.",
    number: position > 0 ? String(position) : undefined,
    actions: [["Leave the line", "leave"]],
  };
}

export function left() {
  return { title: "No world is open", text: "You left the line.", actions: [["Open a world", "restart"]] };
}

export function reconnecting(reason) {
  return {
    title: "Connection lost",
    text: `${sentence(reason ?? "the network path failed")} Your world is kept for a short while; reconnecting.`,
    wave: true,
    actions: [["Start a new one", "restart"]],
  };
}

export function ended(reason) {
  const text = REASONS[reason] ?? (reason ? sentence(String(reason).replaceAll("_", " ")) : "");
  return { title: "This session has ended", text, actions: [["Start a new one", "restart"]] };
}

export function troubled() {
  return { title: "The engine stopped", text: "Your world is being brought back; it goes on from where it was.", wave: true, actions: [["Start a new one", "restart"]] };
}

export function failed() {
  return {
    title: "This world stumbled",
    text: "The engine could not finish a chunk of it. Other sessions are not touched; a reset brings this one back.",
    actions: [["Reset", "reset"], ["Start a new one", "restart"]],
  };
}

export function noWorlds() {
  return {
    title: "No world is loaded",
    text: "The server runs, but it offers no world. Start it with one, for example: physis-stream serve --model pusht",
    actions: [["Look again", "retry"]],
  };
}

export function unsupported() {
  return { title: "This browser cannot show it", text: "The picture travels over WebRTC, which is switched off or missing here.", actions: [] };
}

/** Say what a refusal means; `retryInS` is set where trying again by itself makes sense. */
export function refused(error) {
  switch (error.code) {
    case "capacity":
      return {
        title: "Every place is taken",
        text: error.message,
        retryInS: Math.ceil(error.retryAfterS ?? 5),
        actions: [["Try now", "retry"]],
      };
    case "unauthorized":
      return { title: "This server asks for a token", text: "Whoever runs it can give you one.", form: true, actions: [] };
    case "engine_down":
      return {
        title: "The engine is not running",
        text: "The server is up, but the engine behind it is not. It is usually back within seconds.",
        retryInS: Math.ceil(error.retryAfterS ?? 3),
        actions: [["Try now", "retry"]],
      };
    case "transport":
      return { title: "The server cannot be reached", text: error.message, retryInS: 3, actions: [["Try now", "retry"]] };
    case "timeout":
      return { title: "The server takes too long", text: error.message, retryInS: 5, actions: [["Try now", "retry"]] };
    case "version_mismatch":
      return { title: "This page is out of date", text: "The server speaks another version. Reload the page.", actions: [["Try again", "retry"]] };
    case "session_ended":
      return ended(error.reason);
    default:
      return { title: "That did not work", text: sentence(error.message), actions: [["Try again", "retry"]] };
  }
}

/** The connection in two words and a tone, for the top of the page. */
export function linkOf({ connection, state, stalled, waiting }) {
  if (waiting) return { tone: "busy", text: waiting };
  if (connection === "queued") return { tone: "busy", text: "In line" };
  if (connection === "connecting") return { tone: "busy", text: "Connecting" };
  if (connection === "reconnecting") return { tone: "busy", text: "Reconnecting" };
  if (connection === "closed" || connection === "idle") return { tone: "bad", text: "Not connected" };
  if (state === "paused") return { tone: "idle", text: "Paused" };
  if (state === "failed") return { tone: "bad", text: "Failed" };
  if (stalled) return { tone: "bad", text: "No frames are coming" };
  return { tone: "good", text: "Live" };
}

function sentence(text) {
  const trimmed = String(text).trim();
  if (trimmed === "") return "";
  const capital = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}
