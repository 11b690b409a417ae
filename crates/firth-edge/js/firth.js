// firth.js: live events in a browser, from a firth gateway. No dependencies; docs/edge.md describes what goes over the wire.
//
//   const edge = new Firth("wss://edge.example.com/v1/ws", { token: () => fetchToken() });
//   const orders = edge.subscribe(
//     { collection: "orders", filter: 'doc.state == "paid"', presence: true },
//     {
//       event: (event, info) => render(event),      // info: {at, leaves, replaced}
//       gap: (info) => reload(),                    // this client was slow; info: {after, at, events}
//       resync: (reason) => reload(),               // it was away for too long: fetch the state anew
//       presence: (members, count) => show(members),
//       error: (error) => console.warn(error.field, error.message),
//     },
//   );
//   orders.close();
//   edge.close();
//
// It reconnects by itself, resumes behind the last event that it saw, and subscribes to everything again.

const VERSION = 1;
const MAX_NAME = 64;

/** A position: its epoch, and one offset for each partition. */
function read(at) {
  const [epoch, offsets = ""] = at.split(":");
  return [epoch, offsets.split(".").map(Number)];
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
   *   slow: "conflate", "gap" or "cut": what to do if this client is slow;
   *   minDelay, maxDelay: the pause before a reconnection, in ms (1000 … 30000);
   *   state: called with "connecting", "open", "waiting" and "closed";
   *   error: called with what the gateway refuses;
   *   WebSocket: another implementation than the browser's.
   */
  constructor(url, options = {}) {
    this.url = url;
    this.options = { minDelay: 1000, maxDelay: 30000, ...options };
    this.at = null;
    this.state = "waiting";
    this._subscriptions = new Map();
    this._asked = new Map();
    this._nextRef = 1;
    this._nextId = 1;
    this._delay = this.options.minDelay;
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

  /** Ends the connection for good. */
  close() {
    this._setState("closed");
    clearTimeout(this._timer);
    clearTimeout(this._watch);
    this._socket?.close(1000);
    this._socket = null;
  }

  async _connect() {
    if (this.state === "closed") return;
    this._setState("connecting");
    this._asked.clear();
    let token;
    try {
      token = await (typeof this.options.token === "function" ? this.options.token() : this.options.token);
    } catch (error) {
      this.options.error?.({ code: "unauthorized", message: String(error) });
      return this._retry();
    }
    if (this.state === "closed") return;
    const Socket = this.options.WebSocket ?? globalThis.WebSocket;
    const socket = new Socket(this.url);
    this._socket = socket;
    this._silence = 90000;
    this._hint = null;
    const mine = () => this._socket === socket;
    socket.onopen = () => {
      if (mine()) this._send({ type: "auth", version: VERSION, token, slow: this.options.slow });
    };
    socket.onmessage = (message) => {
      if (!mine()) return;
      this._wait();
      this._hear(JSON.parse(message.data));
    };
    socket.onclose = () => {
      if (mine()) this._lost();
    };
    socket.onerror = () => {};
    this._wait();
  }

  /** A gateway that says nothing for too long is gone, whatever TCP thinks. */
  _wait() {
    clearTimeout(this._watch);
    this._watch = setTimeout(() => {
      const socket = this._socket;
      this._lost();
      socket?.close();
    }, this._silence);
  }

  _lost() {
    this._socket = null;
    clearTimeout(this._watch);
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
        this._stand(message.at);
        for (const one of this._live()) one._call("resync", message.reason);
        return;
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
    this._wait();
    this._delay = this.options.minDelay;
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
    for (const one of asked?.subscriptions ?? []) {
      one.isLive = true;
      if (one.mustResync) {
        one.mustResync = false;
        one._call("resync", "not-resumed");
      }
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

  _refused(message) {
    const asked = this._asked.get(message.ref);
    this._asked.delete(message.ref);
    if (!asked) return this.options.error?.(message);
    // The gateway closes now; everything is asked for again when it is reached anew.
    if (message.code === "unavailable") return;
    if (asked.subscriptions.length > 1) {
      // All or nothing failed: find out whose fault it was. They cannot resume one by one.
      for (const one of asked.subscriptions) {
        one.mustResync = asked.after !== null;
        this._ask([one], null);
      }
      return;
    }
    const [one] = asked.subscriptions;
    this._subscriptions.delete(one.id);
    one._call("error", message);
  }

  _unsubscribe(subscription) {
    if (this._subscriptions.get(subscription.id) !== subscription) return;
    this._subscriptions.delete(subscription.id);
    if (this.state === "open") this._send({ type: "unsubscribe", subscriptions: [subscription.id] });
  }

  _live() {
    return [...this._subscriptions.values()].filter((one) => one.isLive);
  }

  /** Notes where we stand; false if we were there already. */
  _stand(at) {
    if (!at) return true;
    const [epoch, offsets] = read(at);
    const [oldEpoch, oldOffsets] = read(this.at ?? "");
    // One offset for each partition; new is what is further in any of them.
    if (epoch === oldEpoch && offsets.every((offset, at) => offset <= (oldOffsets[at] ?? 0))) return false;
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
