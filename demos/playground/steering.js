/**
 * How a world is steered: by a point (two numbers: pointer, touch, keys) or by sliders (any other count).
 *
 * Knows the world's bounds and the elements that it is given; calls `act(numbers)` with values inside the bounds. It never
 * sends: throttling and sending belong to the client.
 */

const KEY_SPEED = 0.62;
const KEY_SPEED_FAST = 1.4;
const DIRECTIONS = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
  KeyA: [-1, 0],
  KeyD: [1, 0],
  KeyW: [0, -1],
  KeyS: [0, 1],
};

/** Make the steering that fits `world`. `parts` holds stage, reticle and sliders elements. */
export function steeringFor(world, parts, act) {
  return world.action.dim === 2 ? new PointSteering(world, parts, act) : new SliderSteering(world, parts, act);
}

export class PointSteering {
  hint = matchMedia("(hover: none)").matches ? "Drag to steer" : "Move the pointer to steer";
  #low;
  #span;
  #at;
  #stage;
  #reticle;
  #act;
  #held = new Set();
  #fast = false;
  #ticket = 0;
  #abort = new AbortController();

  constructor({ action }, { stage, reticle }, act) {
    this.#low = action.low;
    this.#span = action.high.map((high, index) => high - action.low[index]);
    this.#stage = stage;
    this.#reticle = reticle;
    this.#act = act;
    this.#at = action.initial.map((value, index) => (value - this.#low[index]) / this.#span[index]);
    const options = { signal: this.#abort.signal };
    stage.addEventListener("pointermove", (event) => this.#pointer(event), options);
    stage.addEventListener("pointerdown", (event) => this.#press(event), options);
    new ResizeObserver(() => this.#draw()).observe(stage);
    this.#draw();
    reticle.removeAttribute("hidden");
  }

  /** Where the target is, in the world's numbers. */
  get action() {
    return this.#at.map((share, index) => this.#low[index] + share * this.#span[index]);
  }

  /** Put the target somewhere without sending it, as after a reset or a fork. */
  place(action) {
    this.#at = action.map((value, index) => clamp((value - this.#low[index]) / this.#span[index]));
    this.#draw();
  }

  /** A direction key went down or up; returns whether it is one. */
  key(code, down, fast = false) {
    if (!Object.hasOwn(DIRECTIONS, code)) return false;
    this.#fast = fast;
    if (down) this.#held.add(code);
    else this.#held.delete(code);
    if (this.#held.size > 0 && this.#ticket === 0) this.#ticket = requestAnimationFrame((now) => this.#glide(now, now - 16));
    return true;
  }

  /** Let go of all keys. */
  release() {
    this.#held.clear();
  }

  dispose() {
    this.release();
    this.#abort.abort();
    this.#reticle.setAttribute("hidden", "");
  }

  #pointer(event) {
    if (event.pointerType !== "mouse" && event.buttons === 0) return;
    const box = this.#stage.getBoundingClientRect();
    this.#moveTo((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }

  #press(event) {
    if (event.target.closest?.("button, form")) return;
    if (event.pointerType !== "mouse") this.#stage.setPointerCapture(event.pointerId);
    this.#pointer(event);
  }

  #glide(now, before) {
    if (this.#held.size === 0) {
      this.#ticket = 0;
      return;
    }
    const step = (Math.min(now - before, 100) / 1000) * (this.#fast ? KEY_SPEED_FAST : KEY_SPEED);
    let [dx, dy] = [0, 0];
    for (const code of this.#held) {
      dx += DIRECTIONS[code][0];
      dy += DIRECTIONS[code][1];
    }
    const length = Math.hypot(dx, dy) || 1;
    this.#moveTo(this.#at[0] + (dx / length) * step, this.#at[1] + (dy / length) * step);
    this.#ticket = requestAnimationFrame((next) => this.#glide(next, now));
  }

  #moveTo(x, y) {
    const at = [clamp(x), clamp(y)];
    if (at[0] === this.#at[0] && at[1] === this.#at[1]) return;
    this.#at = at;
    this.#draw();
    this.#act(this.action);
  }

  #draw() {
    const { clientWidth, clientHeight } = this.#stage;
    this.#reticle.style.transform = `translate(${this.#at[0] * clientWidth}px, ${this.#at[1] * clientHeight}px)`;
  }
}

export class SliderSteering {
  hint = "Move the sliders to steer";
  #inputs;
  #box;

  constructor({ action }, { sliders }, act) {
    this.#box = sliders;
    this.#inputs = action.names.map((name, index) => {
      const label = document.createElement("label");
      const input = Object.assign(document.createElement("input"), { type: "range", min: action.low[index], max: action.high[index], step: "any" });
      input.value = String(action.initial[index]);
      const output = document.createElement("output");
      const show = () => (output.textContent = Number(input.value).toFixed(2));
      input.addEventListener("input", () => {
        show();
        act(this.action);
      });
      show();
      label.append(name.replaceAll("_", " "), input, output);
      return { label, input, show };
    });
    sliders.replaceChildren(...this.#inputs.map(({ label }) => label));
    sliders.hidden = false;
  }

  get action() {
    return this.#inputs.map(({ input }) => Number(input.value));
  }

  place(action) {
    this.#inputs.forEach(({ input, show }, index) => {
      input.value = String(action[index]);
      show();
    });
  }

  key() {
    return false;
  }

  release() {}

  dispose() {
    this.#box.replaceChildren();
    this.#box.hidden = true;
  }
}

function clamp(share) {
  return Math.min(1, Math.max(0, share));
}
