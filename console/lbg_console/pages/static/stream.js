/** The event stream of a page, and the state of its connection as the page shows it. */

import { byId, clockText, setText } from "./dom.js";

const SILENT_MS = 15000;
const RETRY_MS = [1000, 1000, 2000, 5000];

/**
 * Follows the events of `url` for the life of the page. `handlers`: a function for each kind of event. `onOpen` is called
 * for each connection: what happens from then on is an event.
 *
 * A hidden tab has no connection: a browser has six for a host, which tabs share.
 */
export class Stream {
  constructor(url, handlers, onOpen = () => {}) {
    this.url = url;
    this.handlers = handlers;
    this.onOpen = onOpen;
    this.survey = null;
    this.lostAt = null;
    this.errors = 0;
    this.lastAt = 0;
    this.source = null;
    this.retry = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    // Else the end of the session would lead back here.
    document.querySelector("form.me")?.addEventListener("submit", () => this.close());
    setInterval(() => this.watch(), 1000);
    if (!document.hidden) this.open();
  }

  open() {
    this.close();
    this.lastAt = Date.now();
    const source = (this.source = new EventSource(this.url));
    source.onopen = () => this.opened();
    source.onerror = () => this.failed();
    for (const [kind, handle] of Object.entries({ tick: () => {}, ...this.handlers })) {
      source.addEventListener(kind, (event) => this.receive(handle, JSON.parse(event.data)));
    }
    source.addEventListener("signed-out", () => this.signIn());
  }

  close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  opened() {
    this.lostAt = null;
    this.errors = 0;
    this.show();
    this.onOpen();
  }

  receive(handle, data) {
    this.lastAt = Date.now();
    if (data.survey) this.survey = data.survey;
    handle(data);
    this.show();
  }

  async failed() {
    this.lostAt ??= Date.now();
    this.errors += 1;
    this.show();
    if (this.source?.readyState === EventSource.CLOSED) {
      const wait = RETRY_MS[Math.min(this.errors, RETRY_MS.length) - 1];
      this.close();
      this.retry = setTimeout(() => this.open(), wait);
    }
    if (this.errors % 3 === 0 && (await isSignedOut())) this.signIn();
  }

  watch() {
    if (this.source && this.lostAt === null && Date.now() - this.lastAt > SILENT_MS) {
      this.lostAt = this.lastAt;
      this.open();
      this.show();
    }
  }

  signIn() {
    this.close();
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}&over=session`);
  }

  show() {
    const line = byId("connection");
    const [state, text] = this.state();
    if (line.dataset.state !== state) line.dataset.state = state;
    setText(line, text);
    document.body.classList.toggle("old", state === "lost" || state === "old");
  }

  state() {
    if (this.lostAt !== null) return ["lost", `connection lost since ${clockText(this.lostAt)}, trying again`];
    const survey = this.survey;
    if (survey?.error) {
      const since = survey.at === null ? "" : `, last read at ${clockText(survey.at)}`;
      return ["old", `the broker cannot be read${since}`];
    }
    return survey?.at ? ["live", "live"] : ["connecting", "connecting"];
  }
}

/** True if the page is for those who signed in. */
async function isSignedOut() {
  try {
    return (await fetch(location.href)).status === 401;
  } catch {
    return false;
  }
}
