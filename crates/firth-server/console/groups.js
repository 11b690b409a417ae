// All groups of all topics, the largest lag first.

import { get, may } from "./api.js";
import { age, button, card, h, head, link, num, plural, rate, swap, table } from "./dom.js";

const PAGE = 50;

export async function groups(context) {
  if (!may("observe")) return [head("Groups"), h("p", { class: "note" }, "This token lacks the scope observe. Each topic shows its own groups.")];
  const list = h("div", {}), search = h("input", { type: "search", placeholder: "Topic or group", "aria-label": "Find groups" });
  let page = 0, last = null;
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const all = last.groups.filter((one) => `${one.topic} ${one.group}`.toLowerCase().includes(wanted));
    page = Math.min(page, Math.max(0, Math.ceil(all.length / PAGE) - 1));
    const rows = all.slice(page * PAGE, (page + 1) * PAGE).map((one) => [
      link(["groups", one.topic, one.group], one.group), link(["topics", one.topic], one.topic), num(one.lag), age(one.oldest_ms), num(one.due),
      one.dead ? link(["dead", one.topic], num(one.dead)) : "0", num(one.members), rate(one.settled_per_second)]);
    swap(list, card(null, [table(
      [["Group", "name"], ["Topic", "text"], ["Lag", "num"], ["Oldest", "num"], ["Due", "num"], ["Dead", "num"], ["Members", "num"], ["Settled/s", "num"]],
      rows, wanted ? "No group has this in its name." : "No groups yet. The first consumer makes one.", "Groups"),
    all.length > PAGE ? h("div", { class: "pager" },
      button("Previous", () => { page = Math.max(0, page - 1); draw(); }, "small"), button("Next", () => { page += 1; draw(); }, "small"),
      `Page ${page + 1} of ${Math.ceil(all.length / PAGE)}`) : null]),
    last.topics_total > last.topics_sampled ? h("p", { class: "note" }, `Groups of ${plural(last.topics_sampled, "topic")} of ${num(last.topics_total)} are shown here. Each topic shows its own groups.`) : null);
  };
  search.addEventListener("input", () => { page = 0; draw(); });
  await context.every(async () => {
    last = await get("/v1/stats?sort=lag&max=1000&after_ms=9007199254740991", context.signal);
    draw();
  });
  return [head("Groups", null, h("div", {}, search)), h("div", { class: "stack" }, list)];
}
