/**
 * The sheet over a pane's picture: shows one of the states of `words.js`, counts down to the next try and passes on what the
 * visitor chooses. Knows no session.
 */

export class Veil {
  #parts;
  #choose;
  #timer = 0;
  #shown = null;

  /** `parts` are the pane's elements; `choose(verb, value?)` is called with what the visitor (or the countdown) decides. */
  constructor(parts, choose) {
    this.#parts = parts;
    this.#choose = choose;
    parts["veil-form"].addEventListener("submit", (event) => {
      event.preventDefault();
      const input = parts["veil-form"].elements.token;
      choose("token", input.value.trim());
      input.value = "";
    });
  }

  /** Cover the picture with `words`; the same words again change nothing but the countdown. */
  show(words) {
    clearInterval(this.#timer);
    const { veil, stage } = this.#parts;
    const parts = this.#parts;
    if (JSON.stringify(words) !== this.#shown) {
      this.#shown = JSON.stringify(words);
      parts["veil-title"].textContent = words.title;
      parts["veil-number"].textContent = words.number ?? "";
      parts["veil-number"].hidden = words.number === undefined;
      parts["veil-wave"].hidden = !words.wave;
      parts["veil-form"].hidden = !words.form;
      parts["veil-actions"].replaceChildren(...words.actions.map(([label, verb], index) => this.#button(label, verb, index === 0 && !words.wave && verb !== "leave")));
    }
    parts["veil-text"].textContent = words.text;
    parts["veil-count"].textContent = "";
    veil.hidden = false;
    stage.dataset.idle = "";
    if (words.retryInS) this.#countDown(words);
  }

  hide() {
    clearInterval(this.#timer);
    this.#shown = null;
    this.#parts.veil.hidden = true;
    delete this.#parts.stage.dataset.idle;
  }

  get covered() {
    return !this.#parts.veil.hidden;
  }

  #button(label, verb, primary) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.className = primary ? "button primary" : "button";
    button.addEventListener("click", () => this.#choose(verb));
    return button;
  }

  #countDown(words) {
    let remaining = words.retryInS;
    const tell = () => {
      this.#parts["veil-count"].textContent = `Trying again in ${remaining} s`;
    };
    tell();
    this.#timer = setInterval(() => {
      remaining -= 1;
      if (remaining > 0) return tell();
      clearInterval(this.#timer);
      this.#choose("retry");
    }, 1000);
  }
}
