// The page of docs/connect.md in a real Chromium. Prints `live` once the page says so, and waits
// for a row that was committed since.

import assert from "node:assert/strict";
import { Browser } from "./browser.mjs";

const [url, row] = process.argv.slice(2);
const browser = await Browser.open(new URL(url).origin);
try {
  await browser.ask("Page.navigate", { url });
  await browser.until("the gateway is live", "document.querySelector('#state')?.textContent === 'live'");
  console.log("live");
  const rows = "[...document.querySelectorAll('#orders tr')].map((one) => [...one.cells].map((cell) => cell.textContent).join(' '))";
  await browser.until(`a row "${row}"`, `${rows}.includes(${JSON.stringify(row)})`);
  assert.deepEqual(browser.errors, []);
} finally {
  await browser.close();
}
console.log("console ok");
