// Who changed what.
import { node } from "../dom.js";
import { short, time } from "../format.js";
import { pages, table } from "../table.js";

export default function audit(context, main) {
  const listing = pages(context, (cursor, limit) => context.ask("GET", "/audit", { query: { cursor, limit } }), (items) =>
    table("Changes, the newest first", [
      { title: "Time", value: (one) => one.time, show: (one) => time(one.time) }, { title: "Who", value: (one) => one.name },
      { title: "From", value: (one) => one.address }, { title: "Action", value: (one) => one.action },
      { title: "Arguments", show: (one) => short(one.arguments) },
      { title: "Status", value: (one) => one.status, show: (one) => node("span", { class: one.status < 400 ? "badge on" : "badge bad" }, String(one.status)) },
      { title: "Result", value: (one) => one.result },
    ], items, { empty: "No change has been made yet. Changes over this page, the commands and the API appear here." }));
  main.append(node("h2", {}, "Audit log"), listing.element);
  listing.show();
}
