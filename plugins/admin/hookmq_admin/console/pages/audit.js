// Who changed what.
import { badge, node } from "../dom.js";
import { short, time } from "../format.js";
import { pages, table } from "../table.js";

export default function audit(context, main) {
  const listing = pages(context, (cursor, limit) => context.ask("GET", "/audit", { query: { cursor, limit } }), (items) =>
    table("Changes, the newest first", [
      { title: "Time", value: "time", as: time }, { title: "Who", value: "name" },
      { title: "From", value: "address" }, { title: "Action", value: "action" },
      { title: "Arguments", show: (one) => short(one.arguments) },
      { title: "Status", value: "status", show: (one) => badge(String(one.status), one.status < 400 ? "on" : "bad") },
      { title: "Result", value: "result" },
    ], items, { empty: "No change has been made yet. Changes over this page, the commands and the API appear here." }));
  main.append(node("h2", {}, "Audit log"), listing.element);
  listing.show();
}
