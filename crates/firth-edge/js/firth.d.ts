// Types of firth.js. docs/edge.md describes the messages behind them.

/** What a client asks for. */
export interface Wish {
  /** The client's name for it, 1 to 64 characters; made up if it is left out. */
  id?: string;
  /** Which collection. */
  collection: string;
  /** Only the document with this key. */
  document?: string;
  /** Only documents like this: CEL over `doc`, `op`, `key`, `collection`. */
  filter?: string;
  /** The same as a list, instead of `filter`. */
  conditions?: Condition[];
  /** Be seen in this collection or document, and see who else is there. */
  presence?: boolean;
}

export interface Condition {
  field: string;
  op: "==" | "!=" | ">" | ">=" | "<" | "<=" | "in" | "contains" | "startsWith" | "endsWith" | "exists";
  value?: unknown;
}

/** A change of a document. */
export interface ChangeEvent<T = unknown> {
  op: "insert" | "update" | "replace" | "delete" | "snapshot";
  collection: string;
  key: string;
  before?: T;
  after?: T;
  committed_ms?: number;
  observed_ms?: number;
  /** Columns whose values the source does not know; they are absent from `after`. */
  missing?: string[];
}

export interface EventInfo {
  /** Where the client stands once it has this event. */
  at: string;
  /** The document matched the filter before and does not any more. */
  leaves: boolean;
  /** So many older events of the document were left out, because this client was slow. */
  replaced: number;
}

/** What the gateway refuses. */
export interface Refusal {
  code: "invalid" | "unauthorized" | "forbidden" | "limit" | "rate" | "unavailable";
  field?: string;
  limit?: number;
  message: string;
}

export type ResyncReason = "too-old" | "unknown-epoch" | "source-gap" | "not-resumed" | "truncated" | "source";

export interface ResyncInfo {
  /** Where the client stands then. */
  at: string;
  /** The collection, if only this one is concerned. */
  collection?: string;
  /** What the source says about it, for people. */
  message?: string;
}

export interface Handlers<T = unknown> {
  /** Once: from now on every event comes. Load the state now, and there is no hole between the two. */
  subscribed?(info: { at: string }): void;
  event?(event: ChangeEvent<T>, info: EventInfo): void;
  /** This client was slow, and events were left out: load the state again. */
  gap?(info: { after: string; at: string; events: number }): void;
  /** Events were missed, or the collection was emptied or read anew at its source: load the state again. */
  resync?(reason: ResyncReason, info: ResyncInfo): void;
  presence?(members: string[], count: number): void;
  /** The subscription was refused, and is over. */
  error?(refusal: Refusal): void;
}

export type State = "connecting" | "open" | "waiting" | "closed";

export interface Options {
  /** A token, or a function that gives one for each connection and each renewal. */
  token?: string | (() => string | undefined | Promise<string | undefined>);
  /** How long before its end a JSON web token is renewed, in ms: 30000. */
  renewBefore?: number;
  /** So many tokens in a row may be rejected before it gives up: 5; a token that is a text only once. */
  maxRejections?: number;
  /** What to do if this client is slow. */
  slow?: "conflate" | "gap" | "cut";
  /** The shortest and the longest pause before a reconnection, in ms: 1000 and 30000. */
  minDelay?: number;
  maxDelay?: number;
  /** How long a connection may take, in ms: 10000. */
  connectTimeout?: number;
  state?(state: State): void;
  error?(refusal: Refusal): void;
  /** Another implementation than the browser's. */
  WebSocket?: new (url: string) => unknown;
}

/** One subscription; made by `Firth.subscribe`. */
export interface Subscription {
  readonly id: string;
  /** Ends it. */
  close(): void;
}

/** A connection to a gateway. It reconnects, resumes and subscribes again by itself. */
export class Firth {
  constructor(url: string, options?: Options);
  readonly url: string;
  readonly state: State;
  /** The newest position, or null. */
  readonly at: string | null;
  /** Subscribes; the handlers are called from now on. */
  subscribe<T = unknown>(wish: Wish, handlers: Handlers<T>): Subscription;
  /** Gets a fresh token and gives it to the gateway, on the open connection. */
  renew(): Promise<void>;
  /** Ends the connection for good. */
  close(): void;
}
