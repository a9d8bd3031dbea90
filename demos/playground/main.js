/**
 * The playground: joins the client, one or two panes, the side column and the keyboard.
 *
 * The address may say what to open: `?world=NAME&seed=N`. A token, where the server asks for one, is kept for this tab only.
 */

import { PhysisClient } from "./client/physis.js";
import { Pane } from "./pane.js";
import { Rail } from "./rail.js";
import * as words from "./words.js";

const MOST_PANES = 2;
const LETTERS = ["A", "B"];
const DRAW_MS = 120;
const ASK_MS = 2000;
const by = (id) => document.getElementById(id);

class Playground {
  #client = new PhysisClient(location.origin, { token: recall(sessionStorage, "physis.token") });
  #query = new URLSearchParams(location.search);
  #panes = [];
  #active = null;
  #worlds = [];
  #rail = new Rail(by);
  #smooth = recall(localStorage, "physis.scale") === "smooth";
  #toastTimer = 0;
  #forking = false;

  async start() {
    this.#chooseScale(this.#smooth);
    this.#listen();
    setInterval(() => this.#draw(), DRAW_MS);
    setInterval(() => void this.#askStats(), ASK_MS);
    const pane = this.#addPane(null);
    if (typeof RTCPeerConnection !== "function") return pane.say(words.unsupported());
    pane.say(words.opening());
    await this.#listWorlds(pane);
  }

  /** List the worlds, again and again while the server cannot be reached, and open the first. */
  async #listWorlds(pane) {
    for (;;) {
      try {
        this.#worlds = await this.#client.models();
        break;
      } catch (error) {
        pane.say({ ...words.refused(error), retryInS: undefined });
        if (error.code === "unauthorized") await this.#tokenGiven();
        else await new Promise((resolve) => setTimeout(resolve, 3000));
      }
    }
    if (this.#worlds.length === 0) return pane.say(words.noWorlds());
    const wanted = this.#worlds.find((world) => world.name === this.#query.get("world")) ?? this.#worlds[0];
    this.#drawWorlds(wanted);
    await pane.change(wanted);
  }

  #tokenGiven() {
    return new Promise((resolve) => by("panes").addEventListener("token", resolve, { once: true }));
  }

  // ---- panes ------------------------------------------------------------------------------------------------------------

  #addPane(world) {
    const seed = Number.parseInt(this.#query.get("seed") ?? "", 10);
    const pane = new Pane({
      client: this.#client,
      world,
      template: by("pane-template"),
      letter: LETTERS[this.#panes.length],
      seed: Number.isSafeInteger(seed) && seed >= 0 ? seed : 0,
      on: {
        change: () => this.#mark(),
        activate: (which) => this.#activate(which),
        fork: (which) => void this.#fork(which),
        close: (which) => void this.#close(which),
        scale: () => this.#chooseScale(!this.#smooth),
        token: (token) => this.#takeToken(token),
        tell: (text) => this.#tell(text),
      },
    });
    this.#panes.push(pane);
    by("panes").append(pane.element);
    this.#active ??= pane;
    this.#mark();
    return pane;
  }

  async #fork(pane) {
    if (this.#panes.length >= MOST_PANES || !pane.canFork || this.#forking) return;
    this.#forking = true;
    const branch = await pane.fork();
    this.#forking = false;
    if (branch === null) return;
    const twin = this.#addPane(pane.world);
    this.#activate(twin);
    twin.stage.focus({ preventScroll: matchMedia("(min-width: 641px)").matches });
    await twin.adopt(branch.session, branch.action, branch.origin);
  }

  async #close(pane) {
    if (this.#panes.length === 1) return;
    this.#panes = this.#panes.filter((other) => other !== pane);
    this.#panes.forEach((other, index) => {
      other.letter = LETTERS[index];
    });
    this.#active = this.#panes[0];
    this.#mark();
    this.#active.stage.focus({ preventScroll: true });
    await pane.dispose();
  }

  #activate(pane) {
    if (this.#active === pane) return;
    this.#active?.releaseKeys();
    this.#active = pane;
    this.#mark();
  }

  #mark() {
    by("panes").dataset.count = String(this.#panes.length);
    for (const pane of this.#panes) {
      pane.mark({ active: pane === this.#active, forkable: this.#panes.length < MOST_PANES, smooth: this.#smooth });
    }
    const link = this.#active.link;
    by("link").dataset.tone = link.tone;
    if (by("link-text").textContent !== link.text) by("link-text").textContent = link.text;
  }

  // ---- page -------------------------------------------------------------------------------------------------------------

  #drawWorlds(chosen) {
    this.#rail.describe(chosen);
    document.title = `${chosen.title} · physis stream`;
    by("worlds").replaceChildren(
      ...this.#worlds.map((world) => {
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: world.title });
        button.setAttribute("aria-pressed", String(world === chosen));
        button.addEventListener("click", () => void this.#chooseWorld(world));
        return button;
      }),
    );
  }

  async #chooseWorld(world) {
    if (this.#panes[0].world === world) return;
    this.#drawWorlds(world);
    await Promise.all(this.#panes.slice(1).map((pane) => this.#close(pane)));
    await this.#panes[0].change(world);
  }

  #draw() {
    if (document.visibilityState !== "visible") return;
    this.#rail.draw(this.#panes, this.#active, performance.now());
    if (this.#active.stats !== null) this.#rail.engine(this.#active.stats, this.#client.sessions.length);
    this.#mark();
  }

  /** While no session brings the engine's numbers, ask for them, so that who waits sees what for. */
  async #askStats() {
    if (document.visibilityState !== "visible" || this.#active.stats !== null) return;
    try {
      this.#rail.engine(await this.#client.stats(), this.#client.sessions.length);
    } catch {
      this.#rail.noEngine();
    }
  }

  #listen() {
    addEventListener("keydown", (event) => this.#key(event));
    addEventListener("keyup", (event) => void this.#active.steerKey(event.code, false, event.shiftKey));
    addEventListener("blur", () => this.#active.releaseKeys());
    by("theme").addEventListener("click", () => nextColours());
    nameColours();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const pane = this.#active;
    const onButton = event.target.closest?.("button, a") !== null && event.target.closest !== undefined;
    const verbs = {
      Space: () => void pane.togglePause(),
      KeyR: () => void pane.reset(),
      KeyF: () => void this.#fork(pane),
      Digit1: () => this.#panes[0].stage.focus(),
      Digit2: () => this.#panes[1]?.stage.focus(),
    };
    if (pane.steerKey(event.code, true, event.shiftKey)) return event.preventDefault();
    if (event.repeat || !Object.hasOwn(verbs, event.code) || (event.code === "Space" && onButton)) return;
    event.preventDefault();
    verbs[event.code]();
  }

  #takeToken(token) {
    this.#client.token = token;
    keep(sessionStorage, "physis.token", token);
    by("panes").dispatchEvent(new Event("token"));
  }

  #chooseScale(smooth) {
    this.#smooth = smooth;
    document.documentElement.dataset.scale = smooth ? "smooth" : "crisp";
    keep(localStorage, "physis.scale", smooth ? "smooth" : "crisp");
    if (this.#active !== null) this.#mark();
  }

  #tell(text) {
    clearTimeout(this.#toastTimer);
    by("toast").textContent = text;
    by("toast").hidden = false;
    this.#toastTimer = setTimeout(() => {
      by("toast").hidden = true;
    }, 6000);
  }
}

/** Go round: the system's colours, then the other ones, then back. */
function nextColours() {
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)").matches;
  if (root.dataset.theme === undefined) root.dataset.theme = systemDark ? "light" : "dark";
  else delete root.dataset.theme;
  keep(localStorage, "physis.colours", root.dataset.theme ?? "system");
  nameColours();
}

function nameColours() {
  by("theme").setAttribute("aria-label", `Colours: ${document.documentElement.dataset.theme ?? "follow the system"}`);
}

function recall(storage, key) {
  try {
    return storage.getItem(key);
  } catch {
    return null;
  }
}

function keep(storage, key, value) {
  try {
    storage.setItem(key, value);
  } catch {
    // Storage is switched off: the choice holds until the page is left.
  }
}

const playground = new Playground();
void playground.start();
