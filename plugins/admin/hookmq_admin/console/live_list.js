// A bounded live list, newest first, drawn a few times per second at most.
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
