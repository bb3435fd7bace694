// The connection: a stream of snapshots, or polling if the stream fails. Always reports its state.

const PATIENCE = 5000;
const AGAIN = 2000;
const STREAM_AGAIN = 30000;

export class Live {
  // `show` receives each snapshot; `state` receives "live", "stale" or "lost".
  constructor(show, state) {
    this.show = show;
    this.state = state;
    this.interval = 1000;
    this.failed = 0;
    this.streamAt = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
    addEventListener("online", () => this.start());
  }

  // A hidden page does not load the exporter.
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
    // The exporter responds: retry the stream at once, but rarely if it keeps failing.
    if (!this.isOwnView && (this.failed < 3 || began > this.streamAt)) {
      this.streamAt = began + STREAM_AGAIN;
      this.timer = setTimeout(() => this.start(), 250);
    } else {
      this.timer = setTimeout(() => this.poll(), Math.max(AGAIN, this.interval));
    }
  }

  take(snapshot) {
    this.interval = snapshot.interval_seconds * 1000;
    this.isOwnView = Boolean(snapshot.viewer); // streams are closed to it
    if (snapshot.time !== this.time) {
      this.time = snapshot.time;
      this.changed = Date.now();
    }
    this.state(Date.now() - this.changed > this.patience() ? "stale" : "live");
    this.show(snapshot);
    this.watch();
  }

  patience() {
    return Math.max(PATIENCE, 3 * this.interval);
  }

  // If nothing arrives in time, poll: the exporter or the network may hang.
  watch() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => {
      this.source?.close();
      this.source = null;
      this.poll();
    }, this.patience());
  }
}
