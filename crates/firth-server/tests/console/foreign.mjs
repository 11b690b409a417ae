// U2: a page of another origin tries everything that a page can do to a server on this machine.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { Browser } from "./browser.mjs";

/** What the page does; `tried` collects what it could read. */
const attack = (target) => `<!doctype html><title>foreign</title><body><script>
  const target = ${JSON.stringify(target)}, tried = window.tried = {};
  const stream = target + "/v1/topics/foreign/groups/evil/stream?max=500&lease_ms=1000";
  const frame = (src, name) => new Promise((done) => {
    const node = document.createElement("iframe");
    node.name = name;
    node.onload = node.onerror = () => done();
    node.src = src;
    document.body.append(node);
  });
  const read = (what, ask) => ask().then((text) => { tried[what] = text; }, () => { tried[what] = "refused"; });
  const json = { "Content-Type": "application/json" };
  const record = JSON.stringify({ payload: "from a foreign page" });
  async function form() {
    await frame("about:blank", "post");
    const node = document.createElement("form");
    Object.assign(node, { method: "post", action: target + "/v1/topics/foreign/records", target: "post", enctype: "text/plain" });
    const input = document.createElement("input");
    Object.assign(input, { name: '{"payload":"', value: '"}' });
    node.append(input);
    document.body.append(node);
    const sent = new Promise((done) => { document.querySelector("[name=post]").onload = done; });
    node.submit();
    await sent;
  }
  const script = () => new Promise((done) => {
    const node = document.createElement("script");
    node.onload = () => { tried.script = "loaded"; done(); };
    node.onerror = () => { tried.script = "refused"; done(); };
    node.src = target + "/v1/topics";
    document.body.append(node);
  });
  (async () => {
    await Promise.all([
      read("list", () => fetch(target + "/v1/topics").then((answer) => answer.text())),
      read("cors", () => fetch(target + "/v1/topics/foreign/records", { method: "POST", headers: json, body: record }).then((answer) => answer.text())),
      read("blind", () => fetch(target + "/v1/topics/foreign/records", { method: "POST", mode: "no-cors", body: record }).then((answer) => answer.type)),
      read("delete", () => fetch(target + "/v1/topics/foreign", { method: "DELETE" }).then((answer) => answer.text())),
      read("events", () => new Promise((done, fail) => { const source = new EventSource(target + "/v1/events"); source.onopen = () => done("open"); source.onerror = fail; })),
      ...Array.from({ length: 7 }, (_, at) => frame(stream, "stream" + at)),
      frame(target + "/", "console"), form(), script(),
    ]);
    window.ended = true;
  })();
</script>`;

/** What all frames of the page hold. Frames of another site are targets of their own. */
async function frames(browser) {
  const expression = "document.documentElement.outerHTML", found = [], own = browser.session;
  const { frameTree } = await browser.ask("Page.getFrameTree"), { targetInfos } = await browser.ask("Target.getTargets");
  for (const { frame } of frameTree.childFrames || []) {
    const { executionContextId: contextId } = await browser.ask("Page.createIsolatedWorld", { frameId: frame.id });
    found.push((await browser.ask("Runtime.evaluate", { expression, contextId })).result.value);
  }
  for (const { targetId } of targetInfos.filter((one) => one.type === "iframe")) {
    browser.session = (await browser.ask("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    found.push(await browser.eval(expression));
    browser.session = own;
  }
  return found;
}

/** `origin` is the server; the page stands on this machine too, and on another site. */
export async function foreignPage(origin, call) {
  await call("PUT", "/v1/topics/foreign", { partitions: 1 });
  await call("POST", "/v1/topics/foreign/records", [{ payload: "one" }, { payload: "two" }, { payload: "three" }]);
  const port = new URL(origin).port;
  const pages = createServer((asked, answer) => {
    answer.setHeader("Content-Type", "text/html");
    answer.end(attack(`http://${new URL(asked.url, "http://here").searchParams.get("at")}:${port}`));
  });
  await new Promise((done) => pages.listen(0, "127.0.0.1", done));
  const browser = await Browser.open("http://127.0.0.1");
  try {
    // Same site, another port; another site; another site that calls the server by its other name.
    for (const [here, there] of [["localhost", "localhost"], ["127.0.0.1", "localhost"], ["localhost", "127.0.0.1"]]) {
      const page = `http://${here}:${pages.address().port}/?at=${there}`;
      await browser.ask("Page.navigate", { url: page });
      await browser.until(`the attack from ${here} on ${there}`, "window.ended");
      const tried = await browser.eval("window.tried");
      assert.deepEqual(Object.keys(tried).sort(), ["blind", "cors", "delete", "events", "list", "script"]);
      for (const [what, got] of Object.entries(tried)) {
        // A blind request is sent, and its answer cannot be read: what it did is seen below.
        assert.ok(got === "refused" || (what === "blind" && got === "opaque"), `${what} from ${here} on ${there}: ${got}`);
      }
      const framed = await frames(browser);
      assert.ok(framed.length >= 8 && framed.every((text) => !text.includes("<nav")), `the console is shown in a frame: ${framed}`);
      await browser.eval(`location.href = "http://${there}:${port}/v1/topics/foreign/groups/evil/stream?max=500&lease_ms=1000"`);
      await browser.until("the answer to a link", `location.port === "${port}" && document.body`);
      assert.equal((await call("GET", "/v1/topics/foreign")).records, 3);
      await call("GET", "/v1/topics/foreign/groups/evil", undefined, 404);
    }
  } finally {
    await browser.close();
    pages.close();
    pages.closeAllConnections();
  }
  await rebound(port);
  assert.equal((await call("GET", "/v1/topics/foreign")).records, 3);
  await call("DELETE", "/v1/topics/foreign");
}

/** A page of a name that points to this machine since: the server is of the page's own origin. */
async function rebound(port) {
  // Newer browsers refuse such calls by themselves; this one is as older ones are.
  const older = "--disable-features=BlockInsecurePrivateNetworkRequests,LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights";
  const browser = await Browser.open(`http://rebound.example:${port}`, "--host-resolver-rules=MAP rebound.example 127.0.0.1", older);
  const record = { method: "POST", body: '{"payload":"planted"}', headers: { "Content-Type": "application/json", "Firth-Client": "console" } };
  try {
    await browser.plant("*://rebound.example*/planted", "<!doctype html><title>planted</title><body>");
    await browser.ask("Page.navigate", { url: `http://rebound.example:${port}/planted` });
    await browser.until("the page", "document.title === 'planted'");
    const ask = (path, set) => browser.eval(`fetch(${JSON.stringify(path)}, ${JSON.stringify(set || {})}).then((answer) => answer.status)`);
    const tried = [await ask("/"), await ask("/console/main.js"), await ask("/v1"), await ask("/v1/topics/foreign/records", record), await ask("/v1/topics/foreign", { method: "DELETE" })];
    assert.deepEqual(tried, [403, 403, 403, 403, 403]);
    assert.equal(await ask("/health/live"), 200, "the name leads to this server");
  } finally {
    await browser.close();
  }
}
