// A stream of events that a person starts and stops. It ends with the page.
import { events } from "./api.js";
import { button } from "./dom.js";

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
