/**
 * Shows a world's readouts as people read them: `agent_x` and `agent_y` become one place, radians become degrees, a reward
 * becomes a bar. Knows only names, units and numbers.
 */

/** Group the names of a world's state: `[{label, kind: "place" | "angle" | "share" | "number", names, unit}]`; a place may turn. */
export function groupReadouts(names, units) {
  const unitOf = new Map(names.map((name, index) => [name, units[index] ?? ""]));
  const groups = [];
  const turn = (base) => (unitOf.get(`${base}_angle`) === "rad" ? [`${base}_angle`] : []);
  for (const name of names) {
    const base = name.replace(/_x$/, "");
    if (name.endsWith("_x") && unitOf.has(`${base}_y`)) groups.push({ label: base, kind: "place", names: [name, `${base}_y`, ...turn(base)], unit: "" });
    else if (name.endsWith("_y") && unitOf.has(name.replace(/_y$/, "_x"))) continue;
    else if (unitOf.get(name) === "rad" && unitOf.has(name.replace(/_angle$/, "_x"))) continue;
    else if (unitOf.get(name) === "rad") groups.push({ label: name, kind: "angle", names: [name], unit: "°" });
    else if (name === "reward") groups.push({ label: name, kind: "share", names: [name], unit: "" });
    else groups.push({ label: name, kind: "number", names: [name], unit: unitOf.get(name) });
  }
  return groups;
}

/** Write the numbers of one group, padded so that nothing jumps about. */
export function formatReadout({ kind, names, unit }, state) {
  const values = names.map((name) => state[name]);
  if (!values.every((value) => Number.isFinite(value))) return "–";
  if (kind === "place") {
    const place = values.slice(0, 2).map((value) => value.toFixed(0).padStart(3)).join(", ");
    return values.length > 2 ? `${place}  ${degrees(values[2])}` : place;
  }
  if (kind === "angle") return degrees(values[0]);
  if (kind === "share") return fixed(values[0]);
  return `${fixed(values[0])}${/^[a-z%°]{1,3}$/.test(unit) ? ` ${unit}` : ""}`;
}

/** Two digits, and never a minus before nothing. */
function fixed(value) {
  return (Math.abs(value) < 0.005 ? 0 : value).toFixed(2);
}

function degrees(radians) {
  return `${((radians * 180) / Math.PI).toFixed(0).padStart(4)}°`;
}

export class Readouts {
  #rows = [];

  /** Lay out the rows of `world` in the list element `list`. */
  constructor(list, world) {
    const groups = groupReadouts(world.state_names, world.state_units);
    if (!world.state_names.includes("reward")) groups.push({ label: "reward", kind: "share", names: ["reward"], unit: "", optional: true });
    this.#rows = groups.map((group) => ({ group, ...row(group) }));
    list.replaceChildren(...this.#rows.map(({ box }) => box));
  }

  /** Show one chunk's telemetry. */
  show({ state, reward }) {
    const numbers = reward === null || reward === undefined ? state : { ...state, reward };
    for (const { group, box, text, bar } of this.#rows) {
      const known = Number.isFinite(numbers[group.names[0]]);
      if (group.optional) box.hidden = !known;
      text.textContent = formatReadout(group, numbers);
      if (bar !== null && known) bar.style.transform = `scaleX(${Math.min(1, Math.max(0, numbers[group.names[0]]))})`;
    }
  }
}

function row({ label, kind, optional }) {
  const box = document.createElement("div");
  const term = document.createElement("dt");
  const value = document.createElement("dd");
  const text = document.createElement("span");
  term.textContent = capital(label.replaceAll("_", " "));
  text.textContent = "–";
  box.append(term, value);
  let bar = null;
  if (kind === "share") {
    box.className = "share";
    const track = document.createElement("span");
    track.className = "bar";
    bar = document.createElement("i");
    track.append(bar);
    value.append(track);
  }
  value.append(text);
  box.hidden = optional === true;
  return { box, text, bar };
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
