// The connection: a stream of readings; where there is none, one reading after the other. It always says how it is.

const PATIENCE = 5000;
const AGAIN = 2000;
const STREAM_AGAIN = 30000;

export class Live {
  // `show` gets every reading; `state` gets "live", "stale" or "lost".
  constructor(show, state) {
    this.show = show;
    this.state = state;
    this.interval = 1000;
    this.failed = 0;
    this.streamAt = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
    addEventListener("online", () => this.start());
  }

  // A page that nobody looks at costs nobody anything.
  stop() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
  }

  start() {
    this.stop();
    if (document.hidden) return;
    const began = Date.now();
    const source = new EventSource("api/v1/events");
    this.source = source;
    source.onmessage = (event) => {
      this.failed = 0;
      this.take(JSON.parse(event.data));
    };
    source.onerror = () => {
      source.close();
      if (this.source !== source) return;
      this.source = null;
      this.failed = Date.now() - began < PATIENCE ? this.failed + 1 : 1;
      this.poll();
    };
    this.watch();
  }

  async poll() {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    const began = Date.now();
    try {
      const answer = await fetch("api/v1/snapshot", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      this.take(await answer.json());
    } catch {
      if (document.hidden) return;
      this.state("lost");
      this.timer = setTimeout(() => this.poll(), AGAIN);
      return;
    }
    if (document.hidden) return;
    // It answers: try the stream again at once, but not over and over where there is none.
    if (this.failed < 3 || began > this.streamAt) {
      this.streamAt = began + STREAM_AGAIN;
      this.timer = setTimeout(() => this.start(), 250);
    } else {
      this.timer = setTimeout(() => this.poll(), Math.max(AGAIN, this.interval));
    }
  }

  take(picture) {
    this.interval = picture.interval_seconds * 1000;
    if (picture.time !== this.time) {
      this.time = picture.time;
      this.changed = Date.now();
    }
    this.state(Date.now() - this.changed > this.patience() ? "stale" : "live");
    this.show(picture);
    this.watch();
  }

  patience() {
    return Math.max(PATIENCE, 3 * this.interval);
  }

  // Silence is looked into: the exporter may hang, or the network swallow everything.
  watch() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => {
      this.source?.close();
      this.source = null;
      this.poll();
    }, this.patience());
  }
}
