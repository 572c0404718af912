// Live messages, the newest first. The list is drawn a few times per second at most, and has a limited length.
import { button, node } from "./dom.js";
import { clock, cut, number, payload } from "./format.js";

export const MAX_ROWS = 200;
const REDRAW = 250;

export class MessageList {
  // `choose` is called with a message that a person selects.
  constructor(signal, choose) {
    this.signal = signal;
    this.choose = choose;
    this.waiting = []; // not drawn yet, the oldest first
    this.total = this.skipped = 0;
    this.paused = false;
    this.rows = node("tbody");
    this.note = node("span", { class: "soft count" }, "No message yet.");
    this.pause = button("Pause", () => this.toggle(), { "aria-pressed": "false" });
    const heads = ["Time", "Topic", "QoS", "Payload"].map((title) => node("th", { scope: "col" }, title));
    this.element = node("div", {}, node("div", { class: "row" }, this.note, this.pause, button("Clear", () => this.clear())),
      node("div", { class: "scroll live", tabindex: "0", role: "region", "aria-label": "Live messages" },
        node("table", {}, node("caption", { class: "hidden" }, "Live messages, the newest first"), node("thead", {}, node("tr", {}, heads)), this.rows)));
  }

  // A message has `at` in epoch seconds, and else the fields that the API has.
  add(message) {
    this.total += 1;
    if (!this.paused) {
      this.waiting.push(message);
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
    this.note.textContent = this.total || this.skipped ? `${number(this.total)} messages${shown}${skipped}` : "No message yet.";
  }

  row(one) {
    return node("tr", {}, node("td", { class: "nowrap" }, clock(one.at, true)),
      node("td", {}, button(cut(one.topic), () => this.choose(one), { class: "plain" })),
      node("td", {}, String(one.qos), one.retain ? node("span", { class: "badge" }, "retained") : ""),
      node("td", { class: "payload" }, cut(payload(one.payload), 160)));
  }
}
