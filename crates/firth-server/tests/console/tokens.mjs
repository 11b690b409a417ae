// A server with tokens: where the console keeps one, what it shows for it, and what its policy stops.
// Called as: node tokens.mjs ORIGIN FOLDER with the tokens in LOOKS and OPERATES.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Browser } from "./browser.mjs";

const [origin, folder] = process.argv.slice(2);
const { LOOKS, OPERATES } = process.env;
mkdirSync(folder, { recursive: true });

const buttons = (page) => page.eval("[...document.querySelectorAll('main button')].map((one) => one.textContent.trim())");
const CHANGES = ["New topic", "Send a message", "Change", "Trim", "Delete", "Reset", "Release"];

async function shown(page) {
  const all = [];
  for (const [hash, text] of [["#/topics", "orders"], ["#/topics/orders", "Partitions"], ["#/groups/orders/bar", "Members"], ["#/routing", "Routing"], ["#/sources", "Sources"]]) {
    await page.open(hash, text);
    all.push(...await buttons(page));
  }
  return CHANGES.filter((name) => all.includes(name));
}

/** Only the tab has it: no address, no cookie, no storage that outlives the tab. */
async function kept(page, token) {
  const { stored, others } = await page.eval("({ stored: sessionStorage.getItem('firth-token'), others: [document.cookie, location.href, JSON.stringify(localStorage), document.documentElement.outerHTML, JSON.stringify(history.state)] })");
  assert.equal(stored, token);
  assert.ok(others.every((one) => !one.includes(token)));
  assert.ok(page.urls.every((url) => !url.includes(token)), "a token in an address");
}

/** What a hole in the page would try. */
async function policy(page) {
  await page.eval(`{
    window.stopped = [];
    addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
    const add = (name, set) => document.body.append(Object.assign(document.createElement(name), set));
    add("script", { textContent: "window.owned = true" });
    add("script", { src: "https://example.org/x.js" });
    add("img", { src: "https://example.org/x.png" });
    add("iframe", { src: "https://example.org/" });
    add("div", { id: "click" });
    document.getElementById("click").setAttribute("onclick", "window.owned = true");
    document.getElementById("click").click();
    fetch("https://example.org/").catch(() => {});
  }`);
  await page.until("all of it is stopped", "['script-src-elem', 'script-src-attr', 'img-src', 'frame-src', 'connect-src'].every((one) => stopped.includes(one))");
  assert.equal(await page.eval("window.owned"), undefined);
}

async function main() {
  const page = await Browser.open(origin);
  page.expected = (entry) => / 40[14] /.test(entry.text) || /Content Security Policy/i.test(entry.text);
  try {
    await page.ask("Page.navigate", { url: `${origin}/` });
    await page.sees("This server asks for a token");
    await page.shot(join(folder, "asked.png"));
    await page.fill("Token", "firth_0000");
    await page.press("Continue");
    await page.sees("The server does not know this token.");
    await page.fill("Token", LOOKS);
    await page.press("Continue");
    await page.sees("token looks");
    await kept(page, LOOKS);
    assert.deepEqual(await shown(page), [], "buttons that the token does not allow");
    await page.press("Forget token");
    await page.sees("This server asks for a token");
    assert.equal(await page.eval("sessionStorage.getItem('firth-token')"), null);
    await page.fill("Token", OPERATES);
    await page.press("Continue");
    await page.sees("token operates");
    await kept(page, OPERATES);
    assert.deepEqual(await shown(page), CHANGES.filter((name) => name !== "Release"));
    assert.deepEqual(page.foreign, []);
    await policy(page);
    assert.deepEqual(page.errors, []);
    console.log("console ok");
  } catch (error) {
    await page.shot(join(folder, "failed.png")).catch(() => {});
    throw error;
  } finally {
    await page.close();
  }
}
await main();
