// firth.js: live events in a browser, from a firth gateway. No dependencies; docs/edge.md describes
// what goes over the wire.
//
//   const edge = new Firth("wss://edge.example.com/v1/ws", { token: () => fetchToken() });
//   const orders = edge.subscribe(
//     { collection: "orders", filter: 'doc.state == "paid"', presence: true },
//     {
//       subscribed: () => load(),                   // every event from now on comes: load the state
//       event: (event, info) => render(event),      // info: {at, leaves, replaced}
//       gap: (info) => load(),                      // this client was slow; info: {after, at, events}
//       resync: (reason, info) => load(),           // load the state again; info: {at, collection, message}
//       presence: (members, count) => show(members),
//       error: (error) => console.warn(error.field, error.message),
//     },
//   );
//   orders.close();
//   edge.close();
//
// It reconnects by itself, resumes behind the last event that it saw, and subscribes to everything
// again. It renews a JSON web token before it runs out, on the open connection.

const VERSION = 1;
const MAX_NAME = 64;
/** The longest time that a timer takes. */
const MAX_TIMER = 2 ** 31 - 1;

/**
 * A position: its epoch, one offset for each partition, and, with a zero in front, the time of the
 * newest record. How much earlier each partition is (behind `-`) matters to gateways only.
 */
function read(at) {
  const [epoch, rest = ""] = at.split(":");
  const offsets = rest.split("-")[0].split(".");
  const time = /^0\d/.test(offsets.at(-1)) ? Number(offsets.pop()) : 0;
  return { epoch, offsets: offsets.map(Number), time };
}

/** When a JSON web token runs out, in ms of Unix time; NaN if it is none or does not say. */
function expiry(token) {
  try {
    const claims = token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    return JSON.parse(atob(claims)).exp * 1000;
  } catch {
    return NaN;
  }
}

/** One subscription; made by `Firth.subscribe`. */
class Subscription {
  constructor(owner, id, wish, handlers) {
    Object.assign(this, { owner, id, wish, handlers, isLive: false, mustResync: false });
  }

  /** Ends it. */
  close() {
    this.owner._unsubscribe(this);
  }

  _call(name, ...args) {
    const handler = this.handlers[name];
    if (!handler) return;
    try {
      handler(...args);
    } catch (error) {
      // A page's mistake must not stop the others' events.
      setTimeout(() => {
        throw error;
      });
    }
  }
}

/** A connection to a gateway. */
export class Firth {
  /**
   * @param {string} url of the gateway: ws://… or wss://…
   * @param {object} options
   *   token: a text, or a function that gives one (or a promise of one) for each connection;
   *   renewBefore: how long before its end a JSON web token is renewed, in ms (30000);
   *   maxRejections: so many tokens in a row may be rejected before it gives up (5); a text only once;
   *   slow: "conflate", "gap" or "cut": what to do if this client is slow;
   *   minDelay, maxDelay: the pause before a reconnection, in ms (1000 … 30000);
   *   connectTimeout: how long a connection may take, in ms (10000);
   *   state: called with "connecting", "open", "waiting" and "closed";
   *   error: called with what the gateway refuses;
   *   WebSocket: another implementation than the browser's.
   */
  constructor(url, options = {}) {
    this.url = url;
    const usual = { minDelay: 1000, maxDelay: 30000, connectTimeout: 10000, renewBefore: 30000, maxRejections: 5 };
    this.options = { ...usual, ...options };
    this.at = null;
    this.state = "waiting";
    this._subscriptions = new Map();
    this._asked = new Map();
    this._nextRef = 1;
    this._nextId = 1;
    this._delay = this.options.minDelay;
    this._rejections = 0;
    this._awake = () => this._wake();
    globalThis.addEventListener?.("online", this._awake);
    globalThis.document?.addEventListener("visibilitychange", this._awake);
    this._connect();
  }

  /** Subscribes; the handlers are called from now on. */
  subscribe(wish, handlers) {
    const id = wish.id ?? `s${this._nextId++}`;
    if (this._subscriptions.has(id)) throw new Error(`there is a subscription with the id ${id}`);
    if (id.length > MAX_NAME) throw new Error(`an id has at most ${MAX_NAME} characters`);
    const subscription = new Subscription(this, id, { ...wish, id }, handlers);
    this._subscriptions.set(id, subscription);
    if (this.state === "open") this._ask([subscription], null);
    return subscription;
  }

  /** Gets a fresh token and gives it to the gateway, so that the connection outlives the old one. */
  async renew() {
    const socket = this._socket;
    try {
      const token = await this._token();
      if (this._socket !== socket || this.state !== "open") return;
      this._send({ type: "auth", version: VERSION, token });
      this._renewLater(token);
    } catch (error) {
      // If it does not help, the gateway closes, and a connection is made with another token.
      this.options.error?.({ code: "unauthorized", message: String(error) });
    }
  }

  /** Ends the connection for good. */
  close() {
    this._setState("closed");
    this._clear();
    clearTimeout(this._timer);
    globalThis.removeEventListener?.("online", this._awake);
    globalThis.document?.removeEventListener("visibilitychange", this._awake);
    this._socket?.close(1000);
    this._socket = null;
  }

  async _token() {
    return typeof this.options.token === "function" ? this.options.token() : this.options.token;
  }

  async _connect() {
    if (this.state === "closed") return;
    this._setState("connecting");
    this._asked.clear();
    this._hint = null;
    let token, socket;
    try {
      token = await this._token();
    } catch (error) {
      this.options.error?.({ code: "unauthorized", message: String(error) });
      return this._retry();
    }
    if (this.state === "closed") return;
    try {
      socket = new (this.options.WebSocket ?? globalThis.WebSocket)(this.url);
    } catch (error) {
      this.options.error?.({ code: "invalid", message: String(error) });
      return this._retry();
    }
    this._socket = socket;
    const mine = () => this._socket === socket;
    socket.onopen = () => {
      if (mine()) this._send({ type: "auth", version: VERSION, token, slow: this.options.slow });
    };
    socket.onmessage = (message) => {
      if (!mine()) return;
      if (this.state === "open") this._wait(this._silence);
      const heard = JSON.parse(message.data);
      if (heard.type === "hello") this._renewLater(token);
      this._hear(heard);
    };
    socket.onclose = (closed) => {
      if (mine()) this._lost(closed.code);
    };
    socket.onerror = () => {};
    this._wait(this.options.connectTimeout);
  }

  /** A gateway that says nothing for too long is gone, whatever TCP thinks. */
  _wait(time) {
    clearTimeout(this._watch);
    this._watch = setTimeout(() => {
      const socket = this._socket;
      this._lost();
      socket?.close();
    }, time);
  }

  /** The network or the page came back: what was waited for need not be waited for any longer. */
  _wake() {
    if (globalThis.document?.visibilityState === "hidden") return;
    // A gateway that named a time spreads its clients.
    if (this.state === "waiting" && this._hint === null) {
      clearTimeout(this._timer);
      this._delay = this.options.minDelay;
      this._connect();
    } else if (this.state === "open") {
      // Any answer shows that the connection still stands.
      this._send({ type: "unsubscribe", subscriptions: [], ref: this._nextRef++ });
      this._wait(Math.min(this.options.connectTimeout, this._silence));
    }
  }

  /** Renews a token that says when it runs out. */
  _renewLater(token) {
    clearTimeout(this._renewal);
    const left = expiry(token) - Date.now();
    if (!(left > 0) || typeof this.options.token !== "function") return;
    const pause = Math.max(left - this.options.renewBefore, left / 2);
    this._renewal = setTimeout(() => this.renew(), Math.min(pause, MAX_TIMER));
  }

  _clear() {
    clearTimeout(this._watch);
    clearTimeout(this._renewal);
  }

  _lost(code) {
    this._socket = null;
    this._clear();
    // A gateway closes with 4401 before it says hello if it does not take the token.
    this._rejections = code === 4401 && this.state === "connecting" ? this._rejections + 1 : 0;
    const most = typeof this.options.token === "function" ? this.options.maxRejections : 1;
    if (this._rejections >= most) return this.close();
    this._retry();
  }

  _retry() {
    if (this.state === "closed") return;
    this._setState("waiting");
    const jitter = 0.8 + 0.4 * Math.random();
    const pause = this._hint ?? this._delay * jitter;
    this._delay = Math.min(this._delay * 2, this.options.maxDelay);
    this._timer = setTimeout(() => this._connect(), pause);
  }

  _hear(message) {
    switch (message.type) {
      case "hello":
        return this._welcome(message);
      case "subscribed":
        return this._subscribed(message);
      case "event":
        return this._event(message);
      case "presence":
        this._subscriptions.get(message.sub)?._call("presence", message.members, message.count);
        return;
      case "gap":
        this._stand(message.at);
        for (const one of this._live()) one._call("gap", { after: message.after, at: message.at, events: message.events });
        return;
      case "resync-required":
        return this._resync(message);
      case "heartbeat":
        this._stand(message.at);
        return this._send({ type: "heartbeat" });
      case "error":
        return this._refused(message);
      case "bye":
        this._hint = message.retry_ms ?? null;
    }
  }

  _welcome(message) {
    this._silence = 3 * message.heartbeat_ms;
    this._wait(this._silence);
    this._delay = this.options.minDelay;
    this._rejections = 0;
    this._setState("open");
    const known = this._live();
    const fresh = [...this._subscriptions.values()].filter((one) => !one.isLive);
    // Those that had events before resume together; new ones begin now.
    if (known.length) this._ask(known, this.at);
    if (fresh.length) this._ask(fresh, null);
  }

  _ask(subscriptions, after) {
    const ref = this._nextRef++;
    this._asked.set(ref, { subscriptions, after });
    const wishes = subscriptions.map((one) => one.wish);
    this._send({ type: "subscribe", ref, subscriptions: wishes, ...(after ? { after } : {}) });
  }

  _subscribed(message) {
    const asked = this._asked.get(message.ref);
    this._asked.delete(message.ref);
    this._stand(message.at);
    for (const one of this._wanted(asked?.subscriptions ?? [])) {
      const isFirst = !one.isLive;
      one.isLive = true;
      if (isFirst) one._call("subscribed", { at: message.at });
      else if (one.mustResync) one._call("resync", "not-resumed", { at: message.at });
      one.mustResync = false;
    }
  }

  _event(message) {
    if (!this._stand(message.at)) return;
    const info = { at: message.at, leaves: false, replaced: message.replaced ?? 0 };
    for (const id of message.subs ?? []) this._subscriptions.get(id)?._call("event", message.event, info);
    for (const id of message.leaves ?? []) {
      this._subscriptions.get(id)?._call("event", message.event, { ...info, leaves: true });
    }
  }

  /** With `subs` it comes in order, as an event does, and concerns these alone; without, everything. */
  _resync(message) {
    const info = { at: message.at, collection: message.collection, message: message.message };
    if (message.subs) {
      if (!this._stand(message.at)) return;
      for (const id of message.subs) this._subscriptions.get(id)?._call("resync", message.reason, info);
      return;
    }
    // The gateway says where it goes on, which may be further back.
    this.at = message.at ?? this.at;
    for (const one of this._live()) one._call("resync", message.reason, info);
  }

  _refused(message) {
    const asked = this._asked.get(message.ref);
    this._asked.delete(message.ref);
    if (!asked) return this.options.error?.(message);
    // The gateway closes now; everything is asked for again when it is reached anew.
    if (message.code === "unavailable") return;
    if (asked.subscriptions.length > 1) {
      // All or nothing failed: find out whose fault it was. They cannot resume one by one.
      for (const one of this._wanted(asked.subscriptions)) {
        one.mustResync = asked.after !== null;
        this._ask([one], null);
      }
      return;
    }
    for (const one of this._wanted(asked.subscriptions)) {
      this._subscriptions.delete(one.id);
      one._call("error", message);
    }
  }

  _unsubscribe(subscription) {
    if (this._subscriptions.get(subscription.id) !== subscription) return;
    this._subscriptions.delete(subscription.id);
    if (this.state === "open") this._send({ type: "unsubscribe", subscriptions: [subscription.id] });
  }

  /** Those that were not closed meanwhile. */
  _wanted(subscriptions) {
    return subscriptions.filter((one) => this._subscriptions.get(one.id) === one);
  }

  _live() {
    return [...this._subscriptions.values()].filter((one) => one.isLive);
  }

  /** Notes where we stand; false if we were there already. */
  _stand(at) {
    if (!at) return true;
    const next = read(at);
    const last = read(this.at ?? "");
    // New is what is further in any partition. If a partition goes back, the time goes on.
    const isFurther = next.offsets.some((offset, partition) => offset > (last.offsets[partition] ?? 0));
    if (next.epoch === last.epoch && next.time <= last.time && !isFurther) return false;
    this.at = at;
    return true;
  }

  _send(message) {
    if (this._socket?.readyState === 1) this._socket.send(JSON.stringify(message));
  }

  _setState(state) {
    if (this.state === state || this.state === "closed") return;
    this.state = state;
    this.options.state?.(state);
  }
}
