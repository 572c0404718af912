// Messages per second of each topic branch: the mean of the last seconds.

export const WINDOW = 10;

export class TopicRates {
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
