// A tree of topics, made from live and retained messages. Its size is limited.
import { button, node } from "./dom.js";
import { cut, number, payload } from "./format.js";

const MAX_NODES = 2000;
const MAX_SHOWN = 100; // children that are shown at once
const REDRAW = 500;
export const WINDOW = 10; // seconds

export class TopicTree {
  // `choose` is called with the branch that a person selects: its topic, last message and count.
  constructor(signal, choose) {
    this.signal = signal;
    this.choose = choose;
    this.size = 0;
    this.lost = 0; // messages of topics that do not fit
    this.since = Infinity; // messages from this time on count for the rates
    this.rates = null;
    this.root = this.branch("", "");
    this.root.open = true;
    this.chosen = null;
    this.list = node("ul", { class: "tree" });
    this.note = node("p", { class: "soft" });
    this.element = node("nav", { "aria-label": "Topics" }, this.list, this.note);
    this.draw();
  }

  branch(name, topic) {
    return { name, topic, count: 0, live: 0, rate: 0, marks: [], last: null, open: false, limit: MAX_SHOWN, children: new Map() };
  }

  // Show each branch's rate from now on. Messages before `since` do not count.
  measure(since) {
    this.rest();
    this.since = since;
    this.rates = new TopicRates(this.root);
    this.ticking = setInterval(() => {
      if (this.signal.aborted) this.rest();
      else if (this.rates.tick()) this.draw();
    }, 1000);
  }

  // Show no rates any more.
  rest() {
    clearInterval(this.ticking);
    this.rates = null;
    this.since = Infinity;
  }

  // `count` more messages arrived than those that are in the tree.
  skip(count) {
    if (this.rates) this.rates.skipped += count;
  }

  clear() {
    this.rest();
    this.size = this.lost = 0;
    this.root = this.branch("", "");
    this.root.open = true;
    this.chosen = null;
    this.draw();
  }

  add(message) {
    let at = this.root, topic = "";
    const live = message.at >= this.since;
    if (live) at.live += 1;
    const levels = message.topic.split("/").slice(0, 64);
    for (const [index, name] of levels.entries()) {
      topic = index ? `${topic}/${name}` : name;
      let next = at.children.get(name);
      if (!next) {
        if (this.size >= MAX_NODES) {
          this.lost += 1;
          return this.later();
        }
        next = this.branch(name, topic);
        at.children.set(name, next);
        this.size += 1;
      }
      next.count += 1;
      if (live) next.live += 1;
      at = next;
    }
    at.last = message;
    if (at === this.chosen) this.changed = true;
    return this.later();
  }

  later() {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (!this.signal.aborted) this.draw();
    }, REDRAW);
  }

  draw() {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.topic : null;
    this.list.replaceChildren(...this.items(this.root));
    if (focused !== null) this.list.querySelector(`[data-topic="${CSS.escape(focused)}"]`)?.focus();
    this.note.textContent = this.size === 0 ? "No topic yet: the tree grows with each message. Follow a filter, or show retained messages."
      : this.lost ? `${number(this.size)} levels are shown; ${number(this.lost)} messages belong to topics that do not fit. Use a narrower filter.` : "";
    if (this.changed) this.choose(this.chosen);
    this.changed = false;
  }

  items(parent) {
    const children = [...parent.children.values()].sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    const made = children.slice(0, parent.limit).map((one) => this.item(one));
    if (children.length > parent.limit) {
      made.push(node("li", {}, button(`${number(children.length - parent.limit)} more`, () => { parent.limit += MAX_SHOWN; this.draw(); }, { class: "plain soft" })));
    }
    return made;
  }

  item(one) {
    const inner = one.children.size > 0;
    const text = one.last ? cut(payload(one.last.payload).replaceAll("\n", " "), 40) : "";
    const open = () => {
      if (inner) one.open = !(one.open && this.chosen === one);
      this.chosen = one;
      this.draw();
      this.choose(one);
    };
    const rate = this.rates && one.rate ? ` · ${number(one.rate)}/s` : "";
    const fields = { type: "button", class: "branch", "data-topic": one.topic, onclick: open };
    if (inner) fields["aria-expanded"] = String(one.open);
    if (one === this.chosen) fields["aria-current"] = "true";
    return node("li", {}, node("button", fields, node("span", { class: "name" }, cut(one.name, 60) || "(empty)"),
      node("span", { class: "soft" }, ` ${number(one.count)}${rate}${text && ` · ${text}`}`)),
    inner && one.open ? node("ul", {}, this.items(one)) : null);
  }
}

// Messages per second of each branch: the mean of the last seconds.
class TopicRates {
  // A branch has `live`, its messages so far, and `children`. It gets `rate` with each `tick`.
  constructor(root) {
    this.root = root;
    this.skipped = 0; // messages that are in no branch
    this.ticks = 0;
    this.began = Date.now();
    this.times = [];
    this.missed = [];
  }

  // Calculate all rates, once a second. Return whether one may have changed.
  tick() {
    const before = this.root.rate, now = Date.now();
    this.ticks += 1;
    this.place = this.ticks % WINDOW;
    this.seconds = Math.max((now - (this.times[this.place] ?? this.began)) / 1000, 0.5); // the timer is slow in a hidden tab
    this.times[this.place] = now;
    const seen = this.change(this.root.marks, this.root.live), missed = this.change(this.missed, this.skipped);
    this.factor = seen ? 1 + missed / seen : 1;
    this.missed[this.place] = this.skipped;
    this.mark(this.root);
    return this.root.rate > 0 || before > 0;
  }

  mark(branch) {
    branch.rate = (this.factor * this.change(branch.marks, branch.live)) / this.seconds;
    branch.marks[this.place] = branch.live;
    for (const one of branch.children.values()) this.mark(one);
  }

  change(marks, value) {
    return value - (marks[this.place] ?? 0);
  }
}
