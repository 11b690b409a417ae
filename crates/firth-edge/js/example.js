// The example page: what a subscription shows. Documents are put in as text, never as markup.
import { Firth } from "./firth.js";

const of = (id) => document.getElementById(id);
const MAX_ROWS = 100;
let edge;

function row(what, key, text) {
  const line = of("events").insertRow(0);
  for (const cell of [what, key, text]) line.insertCell().textContent = cell;
  while (of("events").rows.length > MAX_ROWS) of("events").deleteRow(-1);
}

of("form").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  edge?.close();
  const url = new URL("ws", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  edge = new Firth(url.href, {
    token: of("token").value || undefined,
    state: (state) => (of("state").textContent = state),
    error: (error) => row("refused", error.field ?? "", error.message),
  });
  const filter = of("filter").value || undefined;
  edge.subscribe(
    { collection: of("collection").value, filter, presence: true },
    {
      event: (event, info) => row(info.leaves ? "leaves" : event.op, event.key, JSON.stringify(event.after ?? event.before ?? {})),
      gap: (gap) => row("gap", "", `${gap.events} events left out`),
      resync: (reason) => row("resync", "", reason),
      presence: (members, count) => (of("members").textContent = `${count} (${members.join(", ")})`),
      error: (error) => row("refused", error.field ?? "", error.message),
    },
  );
});
