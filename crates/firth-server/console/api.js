// The public HTTP API, and nothing else: whatever the console does, curl can do.

import { parse } from "./json.js";

let token = sessionStorage.getItem("firth-token") || "";
let asking = null;
let ask = async () => "";
let about = { scopes: [], topics: ["*"] };

/** How a token is asked for. */
export const askWith = (how) => { ask = how; };
export const hasToken = () => token !== "";
export function forgetToken() {
  token = "";
  sessionStorage.removeItem("firth-token");
}

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.kind = body.kind;
  }
}

async function once(method, path, body, signal, exact) {
  const headers = { "Firth-Client": "console" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: sent, signal, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server does not answer.", kind: "unavailable" });
  }
  if (answer.status === 204) return null;
  const isJson = (answer.headers.get("content-type") || "").includes("json");
  const text = await answer.text();
  const read = !isJson ? text : exact ? parse(text) : JSON.parse(text);
  if (!answer.ok) throw new Problem(answer.status, isJson ? read : {});
  return read;
}

/** One call. If the server wants a token, the user is asked once and the call is made again. */
export async function call(method, path, body, signal, exact) {
  for (;;) {
    const used = token;
    try {
      return await once(method, path, body, signal, exact);
    } catch (error) {
      if (error.status !== 401) throw error;
      if (used === token) {
        asking = asking || ask(used !== "").finally(() => { asking = null; });
        token = await asking;
        sessionStorage.setItem("firth-token", token);
      }
    }
  }
}

export const get = (path, signal) => call("GET", path, undefined, signal);
/** As `get`, for records: the numbers of their payloads keep their text. */
export const getRecords = (path, signal) => call("GET", path, undefined, signal, true);
export const post = (path, body) => call("POST", path, body === undefined ? {} : body);
export const put = (path, body) => call("PUT", path, body === undefined ? {} : body);
export const patch = (path, body) => call("PATCH", path, body);
export const del = (path) => call("DELETE", path);

export const topicPath = (topic, rest) => `/v1/topics/${encodeURIComponent(topic)}${rest || ""}`;
export const groupPath = (topic, group, rest) => topicPath(topic, `/groups/${encodeURIComponent(group)}${rest || ""}`);
export const servicePath = (service, rest) => `/v1/claims/${encodeURIComponent(service)}${rest || ""}`;
export const query = (path, set) => {
  const given = Object.entries(set).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
};

export async function learn() {
  about = await get("/v1");
  return about;
}
export const known = () => about;

/** Whether the token allows this; without a topic, whether it does for all. */
export function may(scope, topic) {
  if (!about.scopes.includes(scope)) return false;
  const covers = (pattern) => new RegExp(`^${pattern.split("*").map((part) => part.replace(/[.]/g, "\\.")).join(".*")}$`);
  return topic === undefined ? about.topics.includes("*") : about.topics.some((pattern) => covers(pattern).test(topic));
}
