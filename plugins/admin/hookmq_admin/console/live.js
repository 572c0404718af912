// Live data: a bounded list, newest first, drawn a few times per second at most, and a stream of events that fills it.
import { events } from "./api.js";
import { button, node } from "./dom.js";
import { number } from "./format.js";

const MAX_ROWS = 200;
const REDRAW = 250;

export class LiveList {
  // `row` makes a table row of an item. `noun` names one item, and `columns` are titles.
  constructor(signal, title, noun, columns, row) {
    this.signal = signal;
    this.noun = noun;
    this.row = row;
    this.waiting = []; // not drawn yet, the oldest first
    this.total = this.skipped = 0;
    this.paused = false;
    this.rows = node("tbody");
    this.note = node("span", { class: "soft count" }, this.nothing());
    this.pause = button("Pause", () => this.toggle(), { "aria-pressed": "false" });
    const heads = columns.map((column) => node("th", { scope: "col" }, column));
    this.element = node("div", {}, node("div", { class: "row" }, this.note, this.pause, button("Clear", () => this.clear())),
      node("div", { class: "scroll live", tabindex: "0", role: "region", "aria-label": title },
        node("table", {}, node("caption", { class: "hidden" }, `${title}, the newest first`), node("thead", {}, node("tr", {}, heads)), this.rows)));
  }

  nothing() {
    return `No ${this.noun} yet.`;
  }

  add(item) {
    this.total += 1;
    if (!this.paused) {
      this.waiting.push(item);
      if (this.waiting.length > MAX_ROWS) this.waiting.shift();
    }
    this.later();
  }

  skip(count) {
    this.skipped += count;
    this.later();
  }

  clear() {
    this.waiting = [];
    this.total = this.skipped = 0;
    this.rows.replaceChildren();
    this.draw();
  }

  toggle() {
    this.paused = !this.paused;
    this.pause.setAttribute("aria-pressed", String(this.paused));
    this.pause.textContent = this.paused ? "Continue" : "Pause";
  }

  later() {
    this.timer ??= setTimeout(() => { if (!this.signal.aborted) this.draw(); }, REDRAW);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = undefined;
    const made = this.waiting.map((one) => this.row(one)).reverse();
    this.waiting = [];
    this.rows.prepend(...made);
    while (this.rows.childElementCount > MAX_ROWS) this.rows.lastElementChild.remove();
    this.note.dataset.total = this.total;
    this.note.dataset.skipped = this.skipped;
    const shown = this.total > MAX_ROWS ? `, the newest ${MAX_ROWS} are shown` : "";
    const skipped = this.skipped ? `; ${number(this.skipped)} more were skipped to protect the broker` : "";
    this.note.textContent = this.total || this.skipped ? `${number(this.total)} ${this.noun}s${shown}${skipped}` : this.nothing();
  }
}

// A stream that a person starts and stops. It ends with the page.
export class Tail {
  // `hear` gets each event's name and data; `ended` is called after the last.
  constructor({ signal, say }, hear, ended = () => {}) {
    this.say = say;
    this.hear = hear;
    this.ended = ended;
    this.running = null;
    this.stop = button("Stop", () => this.end("The tail is closed."), { disabled: true });
    signal.addEventListener("abort", () => this.running?.abort());
  }

  end(text, bad = false) {
    this.running?.abort();
    this.running = null;
    this.stop.disabled = true;
    this.ended();
    if (text) this.say(text, bad);
  }

  // Follow the stream that `ask(signal)` opens, until it ends. Throws if it cannot be opened.
  async follow(ask, text) {
    this.end("");
    const mine = this.running = new AbortController();
    const response = await ask(mine.signal);
    this.stop.disabled = false;
    this.say(text);
    try {
      for await (const [name, data] of events(response.body)) {
        if (name === "end") return this.end(`The tail has ended: ${data.reason}.`, true);
        this.hear(name, data);
      }
    } catch {
      return mine.signal.aborted ? undefined : this.end("The tail has ended: the connection was lost.", true);
    }
    return mine.signal.aborted ? undefined : this.end("The tail has ended: the broker closed it.", true);
  }
}
