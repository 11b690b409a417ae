// A real Chromium, driven over its debugging pipe: no library, no port.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync", "--disable-background-networking",
  "--disable-component-update", "--disable-extensions", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"];
const PATIENCE = 60_000;

/** Runs in the page: notes the names of buttons that were there, and of those that were pressed. */
function watchButtons() {
  const seen = window.buttonsSeen = new Set(), pressed = window.buttonsPressed = new Set();
  const name = (one) => one.textContent.trim().replace(/\d[\d.\u202f]*/g, "N");
  addEventListener("click", (event) => {
    const one = event.target.closest?.("button");
    if (one) pressed.add(name(one));
  }, true);
  const look = () => document.querySelectorAll("button:not(.linklike)").forEach((one) => seen.add(name(one)));
  new MutationObserver(look).observe(document, { subtree: true, childList: true });
}

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
    await this.eval(`${found}[0].click()`);
  }

  /** Presses the button with this key. */
  async pressKey(key) {
    const one = `document.querySelector(${JSON.stringify(`button[data-k="${key}"]`)})`;
    await this.until(`a button ${key}`, one);
    await this.eval(`${one}.click()`);
  }

  /** Opens the row of a table that has this text in it. */
  async openRow(text) {
    const row = `[...document.querySelectorAll("tbody tr")].find((one) => one.textContent.includes(${JSON.stringify(text)}))`;
    await this.until(`a row with ${text}`, row);
    await this.eval(`${row}.querySelector("button.linklike").click()`);
    await this.until("the row is open", "document.querySelector('.viewer')");
  }

  /** Types into the control with this label. */
  async fill(label, value) {
    const root = "(document.querySelector('dialog[open]') || document)";
    const control = `[...${root}.querySelectorAll('label')].find((one) => one.firstChild?.textContent.trim() === ${JSON.stringify(label)})?.querySelector('input,select,textarea')`;
    await this.until(`a control ${label}`, control);
    await this.eval(`{ const one = ${control}; one.value = ${JSON.stringify(value)}; one.dispatchEvent(new Event("input", { bubbles: true })); one.dispatchEvent(new Event("change", { bubbles: true })); }`);
  }

  async key(name) {
    const codes = { Tab: 9, Enter: 13, Escape: 27, " ": 32, ArrowLeft: 37, ArrowRight: 39 };
    const text = name === "Enter" ? "\r" : name === " " ? " " : undefined;
    for (const type of ["keyDown", "keyUp"]) await this.ask("Input.dispatchKeyEvent", { type, key: name, code: name === " " ? "Space" : name, windowsVirtualKeyCode: codes[name], text: type === "keyDown" ? text : undefined });
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
