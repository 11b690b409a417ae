// All topics, page by page.

import { get, may, put, query } from "./api.js";
import { form } from "./dialog.js";
import { age, bytes, button, card, field, h, head, link, num, rate, route, swap, table } from "./dom.js";

const PAGE = 50;

export function retention(topic) {
  const limits = [
    topic.retention_ms !== null && age(topic.retention_ms),
    topic.retention_records !== null && `${num(topic.retention_records)} records`,
    topic.retention_bytes !== null && bytes(topic.retention_bytes),
  ].filter(Boolean);
  return limits.length ? limits.join(", ") : "for ever";
}

const whole = (text, name) => {
  if (text.trim() === "") return undefined;
  if (!/^\d+$/.test(text.trim())) throw new Error(`${name}: write a whole number, or leave it empty.`);
  return Number(text.trim());
};

/** The settings of a topic as fields; `read` gives what the API takes. */
export function settings(topic) {
  const is = (value, scale) => value === null || value === undefined ? "" : String(value / (scale || 1));
  const input = (value) => h("input", { inputmode: "numeric", value });
  const parts = {
    partitions: input(topic ? topic.partitions : ""), hours: input(is(topic && topic.retention_ms, 3_600_000)),
    records: input(is(topic && topic.retention_records)), size: input(is(topic && topic.retention_bytes)),
    payload: input(is(topic && topic.max_payload)),
  };
  const node = h("div", { class: "fields" },
    field("Partitions", parts.partitions), field("Keep for hours", parts.hours), field("Keep records per partition", parts.records),
    field("Keep bytes per partition", parts.size), field("Largest payload in bytes", parts.payload));
  const limit = (value, was) => value !== undefined ? value : topic && was !== null ? null : undefined;
  const read = () => {
    const hours = parts.hours.value.trim();
    if (hours !== "" && !(Number(hours) >= 0)) throw new Error("Hours: write a number, or leave it empty.");
    return {
      partitions: whole(parts.partitions.value, "Partitions"),
      retention_ms: limit(hours === "" ? undefined : Math.round(Number(hours) * 3_600_000), topic && topic.retention_ms),
      retention_records: limit(whole(parts.records.value, "Records"), topic && topic.retention_records),
      retention_bytes: limit(whole(parts.size.value, "Bytes"), topic && topic.retention_bytes),
      max_payload: whole(parts.payload.value, "Payload"),
    };
  };
  return { node, read };
}

async function create() {
  const name = h("input", { autocomplete: "off", spellcheck: "false", name: "name" });
  const rest = settings(null);
  const made = await form({
    title: "New topic", action: "Create",
    body: h("div", { class: "stack" }, field("Name", name), rest.node, h("p", { class: "note" }, "An empty field takes the server's default. The number of partitions can only grow later.")),
    act: async () => {
      if (!name.value.trim()) throw new Error("Give it a name.");
      await put(`/v1/topics/${encodeURIComponent(name.value.trim())}`, rest.read());
      return name.value.trim();
    },
  });
  if (made) location.hash = route(["topics", made]);
}

export async function topics(context) {
  const list = h("div", {}), pager = h("div", {});
  const search = h("input", { type: "search", placeholder: "Part of a name", value: context.query.contains || "", "aria-label": "Find topics by name" });
  let trail = [""], rates = new Map();
  async function update() {
    const after = trail.at(-1);
    const asked = get(query("/v1/topics", { after, max: PAGE, contains: search.value.trim() }), context.signal);
    const stats = may("observe") ? get("/v1/stats?max=1000&after_ms=9007199254740991", context.signal) : null;
    const [page, now] = await Promise.all([asked, stats]);
    if (now) rates = new Map(now.topics.map((one) => [one.topic, one.produced_per_second]));
    swap(list, card(null, table(
      [["Topic", "name"], ["Partitions", "num"], ["Records", "num"], ["Delayed", "num"], ["Sent/s", "num"], ["Kept", "tight"]],
      page.topics.map((one) => [link(["topics", one.name], one.name), num(one.partitions), num(one.records), num(one.delayed),
        rates.has(one.name) ? rate(rates.get(one.name)) : "–", retention(one)]),
      search.value ? "No topic has this in its name." : "No topics yet.", "Topics")));
    swap(pager, trail.length > 1 || page.next ? h("div", { class: "pager" },
      trail.length > 1 ? button("Previous", () => { trail.pop(); return update(); }, "small") : null,
      page.next ? button("Next", () => { trail.push(page.next); return update(); }, "small") : null,
      `Page ${trail.length}`) : null);
  }
  search.addEventListener("input", () => { trail = [""]; update().catch(() => {}); });
  await context.every(update);
  return [head("Topics", null, h("div", {}, search), may("admin") ? button("New topic", create, "primary") : null), list, pager];
}
