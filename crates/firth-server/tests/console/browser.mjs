// A real Chromium, driven over its debugging pipe: no library, no port.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync", "--disable-background-networking",
  "--disable-component-update", "--disable-extensions", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"];
const PATIENCE = 60_000;
/** The most presses of Tab on the way to a control. */
const TABS = 1500;
const CODES = { Tab: 9, Enter: 13, Escape: 27, " ": 32, End: 35, Home: 36, ArrowLeft: 37, ArrowUp: 38, ArrowRight: 39, ArrowDown: 40, Delete: 46 };
const SHIFT = 8, CONTROL = 2;

/** Runs in the page: notes the names of buttons that were there, and of those that were pressed. */
function watchButtons() {
  const seen = window.buttonsSeen = new Set(), pressed = window.buttonsPressed = new Set();
  window.clicks = 0;
  const name = (one) => one.textContent.trim().replace(/\d[\d.\u202f]*/g, "N");
  addEventListener("click", (event) => {
    const one = event.target.closest?.("button");
    window.clicks += 1;
    if (one) pressed.add(name(one));
  }, true);
  const look = () => document.querySelectorAll("button:not(.linklike)").forEach((one) => seen.add(name(one)));
  new MutationObserver(look).observe(document, { subtree: true, childList: true });
}

/** Runs in the page: in which direction a control is, and about how many presses of Tab away. */
function wayTo(one, here) {
  if (!one) return [1, 0];
  if (one === here) return [0, 0];
  const root = document.querySelector("dialog[open]") || document;
  const stops = [...root.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter((stop) => !stop.disabled && stop.tabIndex >= 0 && stop.offsetParent !== null);
  const from = stops.indexOf(here), to = stops.indexOf(one);
  if (to < 0) return [1, 0];
  const isBefore = here !== document.body && Boolean(one.compareDocumentPosition(here) & Node.DOCUMENT_POSITION_FOLLOWING);
  return [isBefore ? -1 : 1, from < 0 ? 1 : Math.max(1, Math.abs(to - from))];
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

export class Browser {
  static async open(origin, ...flags) {
    const browser = new Browser();
    browser.origin = origin;
    browser.profile = mkdtempSync(join(tmpdir(), "firth-console-"));
    browser.child = spawn("chromium", [...FLAGS, ...flags, `--user-data-dir=${browser.profile}`, "about:blank"], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    browser.waiting = new Map();
    browser.asked = 0;
    browser.errors = [];
    browser.foreign = [];
    browser.urls = [];
    browser.loaded = 0;
    browser.requests = 0;
    let rest = "";
    browser.child.stdio[4].on("data", (chunk) => {
      rest += chunk;
      for (let end = rest.indexOf("\0"); end >= 0; end = rest.indexOf("\0")) {
        browser.heard(JSON.parse(rest.slice(0, end)));
        rest = rest.slice(end + 1);
      }
    });
    const { targetId } = await browser.ask("Target.createTarget", { url: "about:blank" });
    browser.session = (await browser.ask("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await browser.ask(`${domain}.enable`);
    await browser.ask("Page.addScriptToEvaluateOnNewDocument", { source: `(${watchButtons})();` });
    await browser.size(1280, 860);
    return browser;
  }

  heard({ id, method, params, result, error }) {
    if (id) {
      const { done, fail } = this.waiting.get(id);
      this.waiting.delete(id);
      return error ? fail(new Error(JSON.stringify(error))) : done(result);
    }
    if (method === "Runtime.exceptionThrown") this.errors.push(params.exceptionDetails.exception?.description || params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && params.type === "error") this.errors.push(params.args.map((one) => one.value || one.description).join(" "));
    if (method === "Log.entryAdded" && params.entry.level === "error" && !this.expected?.(params.entry)) this.errors.push(`${params.entry.text} ${params.entry.url || ""}`);
    if (method === "Fetch.requestPaused") {
      const responseHeaders = [{ name: "Content-Type", value: "text/html" }];
      this.ask("Fetch.fulfillRequest", { requestId: params.requestId, responseCode: 200, responseHeaders, body: Buffer.from(this.planted).toString("base64") });
    }
    if (method === "Network.loadingFinished") this.loaded += params.encodedDataLength;
    if (method === "Network.requestWillBeSent") {
      this.requests += 1;
      const url = params.request.url;
      this.urls.push(url);
      if (!url.startsWith(this.origin + "/") && !url.startsWith("data:") && !url.startsWith("about:")) this.foreign.push(url);
    }
  }

  ask(method, params = {}) {
    this.asked += 1;
    const id = this.asked;
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId: /^(Target|Browser)[.]/.test(method) ? undefined : this.session })}\0`);
    return new Promise((done, fail) => this.waiting.set(id, { done, fail }));
  }

  async eval(expression) {
    const { result, exceptionDetails } = await this.ask("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description || exceptionDetails.text}`);
    return result.value;
  }

  async until(what, expression) {
    const end = Date.now() + PATIENCE;
    while (!(await this.eval(`Boolean(${expression})`).catch(() => false))) {
      if (Date.now() > end) throw new Error(`never: ${what}\n${await this.eval("document.body.innerText").catch(() => "")}`);
      await new Promise((done) => setTimeout(done, 50));
    }
  }

  size(width, height) {
    return this.ask("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
  }

  theme(value) {
    return this.ask("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] });
  }

  /** Answers requests like these with a page, in place of the server. */
  plant(urlPattern, html) {
    this.planted = html;
    return this.ask("Fetch.enable", { patterns: [{ urlPattern }] });
  }

  /** Goes to a page; the old one is gone when its heading is. */
  async open(hash, text) {
    await this.eval("document.querySelector('main h1')?.remove()");
    await this.eval(`location.hash === ${JSON.stringify(hash)} ? dispatchEvent(new HashChangeEvent("hashchange")) : (location.hash = ${JSON.stringify(hash)})`);
    await this.until(`the page ${hash}`, "document.querySelector('main h1')");
    await this.sees(text);
  }

  sees(text) {
    return this.until(`the page shows ${text}`, `document.body.innerText.includes(${JSON.stringify(text)})`);
  }

  /** Presses the button with this text, in the open dialog if there is one. */
  async press(text) {
    const root = "(document.querySelector('dialog[open]') || document)";
    const found = `[...${root}.querySelectorAll('button')].filter((one) => !one.disabled && one.offsetParent !== null && one.textContent.trim() === ${JSON.stringify(text)})`;
    await this.until(`a button ${text}`, `${found}.length`);
    await this.activate(text, `${found}[0]`);
  }

  /** Presses the button with this key. */
  pressKey(key) {
    return this.activate(key, `document.querySelector(${JSON.stringify(`button[data-k="${key}"]`)})`);
  }

  /** Opens the row of a table that has this text in it. */
  async openRow(text) {
    const row = `[...document.querySelectorAll("tbody tr")].find((one) => one.textContent.includes(${JSON.stringify(text)}))`;
    await this.until(`a row with ${text}`, row);
    await this.activate(`the row of ${text}`, `${row}?.querySelector("button.linklike")`);
    await this.until("the row is open", "document.querySelector('.viewer')");
  }

  /**
   * Clicks what the expression names, or with `byKeys` goes there by Tab and presses a key. If the
   * page draws it anew between both, the key reaches nothing and the way begins again.
   */
  async activate(what, expression, key = "Enter") {
    await this.until(what, expression);
    if (!this.byKeys) return this.eval(`${expression}.click()`);
    for (let turn = 0; turn < 5; turn += 1) {
      const before = await this.eval("window.clicks");
      if (await this.eval(`${expression}?.getAttribute("role") === "tab"`)) return this.chooseTab(what, expression);
      await this.reach(what, expression);
      await this.key(key);
      for (let look = 0; look < 10; look += 1) {
        // A page that goes away takes the count with it.
        if (await this.eval("window.clicks").catch(() => -1) !== before) return;
        await sleep(20);
      }
    }
    throw new Error(`${key} does nothing on ${what}`);
  }

  /** Of a row of tabs only the chosen one is on the way; arrows lead to the others. */
  async chooseTab(what, tab) {
    await this.reach(`the tabs of ${what}`, `${tab}?.parentNode.querySelector("[aria-selected=true]")`);
    const steps = await this.eval(`((all) => all.indexOf(${tab}) - all.indexOf(document.activeElement))([...${tab}.parentNode.children])`);
    for (let at = 0; at < Math.abs(steps); at += 1) await this.key(steps > 0 ? "ArrowRight" : "ArrowLeft");
    assert.ok(await this.eval(`document.activeElement === ${tab} && ${tab}.getAttribute("aria-selected") === "true"`), what);
    // What the arrows did counts as a press of the tab.
    await this.key("Enter");
  }

  /** Moves the focus by Tab alone to what the expression names. */
  async reach(what, expression) {
    for (let pressed = 0; pressed < TABS;) {
      const [way, steps] = await this.eval(`(${wayTo})(${expression}, document.activeElement)`);
      if (way === 0) return;
      if (!steps) { await sleep(20); pressed += 1; continue; }
      for (let at = 0; at < steps; at += 1) await this.key("Tab", way < 0 ? SHIFT : 0);
      pressed += steps;
    }
    throw new Error(`no way to ${what} by Tab; the focus is on ${await this.eval("document.activeElement.outerHTML.slice(0, 200)")}`);
  }

  /** Types into the control with this label. */
  async fill(label, value) {
    const root = "(document.querySelector('dialog[open]') || document)";
    const control = `[...${root}.querySelectorAll('label')].find((one) => one.firstChild?.textContent.trim() === ${JSON.stringify(label)})?.querySelector('input,select,textarea')`;
    await this.until(`a control ${label}`, control);
    await this.write(label, control, value);
  }

  /** Writes a value into the control that the expression names. */
  async write(what, control, value) {
    await this.until(what, control);
    if (!this.byKeys) {
      await this.eval(`{ const one = ${control}; one.value = ${JSON.stringify(value)}; one.dispatchEvent(new Event("input", { bubbles: true })); one.dispatchEvent(new Event("change", { bubbles: true })); }`);
      return;
    }
    await this.reach(what, control);
    const [kind, from, to] = await this.eval(`((one) => one.tagName === "SELECT" ? ["select", one.selectedIndex, [...one.options].findIndex((option) => option.value === ${JSON.stringify(value)})] : [one.type])(${control})`);
    if (kind === "select") {
      for (let at = 0; at < Math.abs(to - from); at += 1) await this.key(to > from ? "ArrowDown" : "ArrowUp");
    } else if (kind === "datetime-local") {
      const [, year, month, day, hour, minute] = value.match(/(\d+)-(\d+)-(\d+)T(\d+):(\d+)/);
      // It has several parts; its first one is reached from before it.
      while (await this.eval(`document.activeElement === ${control}`)) await this.key("Tab", SHIFT);
      await this.key("Tab");
      await this.type(`${month}${day}${year}`);
      await this.key("ArrowRight");
      await this.type(`${String(hour % 12 || 12).padStart(2, "0")}${minute}${hour < 12 ? "A" : "P"}`);
    } else {
      await this.key("a", CONTROL);
      await this.key("Delete");
      if (value !== "") await this.ask("Input.insertText", { text: value });
    }
    assert.equal(await this.eval(`document.activeElement.value`), value, what);
    // Leaving the control ends the input, as a person does.
    await this.key("Tab");
  }

  async type(text) {
    for (const letter of text) await this.key(letter);
  }

  async key(name, modifiers = 0) {
    const text = name === "Enter" ? "\r" : name.length === 1 && !modifiers ? name : undefined;
    const windowsVirtualKeyCode = CODES[name] || name.toUpperCase().charCodeAt(0);
    const commands = modifiers === CONTROL && name === "a" ? ["selectAll"] : undefined;
    const down = this.ask("Input.dispatchKeyEvent", { type: "keyDown", key: name, code: name === " " ? "Space" : name, windowsVirtualKeyCode, modifiers, text, commands });
    await Promise.all([down, this.ask("Input.dispatchKeyEvent", { type: "keyUp", key: name, code: name === " " ? "Space" : name, windowsVirtualKeyCode, modifiers })]);
  }

  async shot(file) {
    const { data } = await this.ask("Page.captureScreenshot", { format: "png", captureBeyondViewport: false });
    writeFileSync(file, Buffer.from(data, "base64"));
  }

  async close() {
    const ended = new Promise((done) => this.child.once("exit", done));
    this.ask("Browser.close").catch(() => {});
    const late = setTimeout(() => this.child.kill("SIGKILL"), 5000);
    await ended;
    clearTimeout(late);
    // Helpers of the browser may still write for a moment; what they leave is in the temporary folder.
    try { rmSync(this.profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 }); } catch { /* left behind */ }
  }
}
