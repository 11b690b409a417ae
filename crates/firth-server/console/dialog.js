// Dialogs: questions before something is lost, and forms.

import { h } from "./dom.js";

/** Opens a form in a dialog; `act` gets the form and closes it by ending without an error. */
export function form({ title, body, action, danger, act, typed, cancel = "Cancel" }) {
  const opener = document.activeElement;
  const wrong = h("p", { class: "error", role: "alert" });
  const go = h("button", { type: "submit", class: `primary ${danger ? "danger" : ""}`, "data-k": "go" }, action);
  const name = typed ? h("input", { autocomplete: "off", spellcheck: "false", name: "typed" }) : null;
  const inside = h("form", { method: "dialog", novalidate: true },
    h("h2", { id: "dialog-title" }, title), body,
    typed ? h("label", {}, `Type “${typed}” to confirm`, name) : null, wrong,
    h("footer", {}, cancel ? h("button", { type: "button", onclick: () => box.close() }, cancel) : null, go));
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, inside);
  if (typed) {
    go.disabled = true;
    name.addEventListener("input", () => { go.disabled = name.value !== typed; });
  }
  return new Promise((done) => {
    let outcome;
    inside.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (typed && name.value !== typed) return;
      go.disabled = true;
      wrong.textContent = "";
      try {
        outcome = await act(inside);
        if (outcome === undefined || outcome === null) outcome = true;
        box.close();
      } catch (error) {
        wrong.textContent = error.message || String(error);
      } finally {
        go.disabled = false;
      }
    });
    box.addEventListener("cancel", (event) => { if (!cancel) event.preventDefault(); });
    box.addEventListener("close", () => {
      box.remove();
      if (opener && opener.isConnected) opener.focus({ preventScroll: true });
      done(outcome);
    });
    document.body.append(box);
    box.showModal();
    const first = inside.querySelector("input, select, textarea");
    (first || go).focus();
  });
}

/** Says what is lost, and does it. */
export const confirmLoss = ({ title, lost, action, typed, act, note, extra }) => form({
  title, action, typed, act, danger: true,
  body: h("div", { class: "stack" },
    h("ul", {}, lost.filter(Boolean).map((line) => h("li", {}, line))),
    h("p", { class: "note" }, note || "This cannot be undone."), extra),
});

/** Text to copy, where the browser gives no access to the clipboard. */
export const show = (title, text) => form({
  title, action: "Close", cancel: null, act: () => true,
  body: h("textarea", { readonly: true, "aria-label": title, rows: 8, value: text }),
});
