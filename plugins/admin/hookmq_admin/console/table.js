// Tables. Only one page of a listing is ever in the document.
import { button, choice, node } from "./dom.js";
import { short } from "./format.js";

// A column is { title, value, show, number }: `value` is what to sort by, a function or a name; `show` makes
// a text or an element of an item, and `as` of the value.
export function table(caption, columns, items, { empty = "There is nothing to show.", sort = null } = {}) {
  let by = sort, rows = [...items];
  const read = ({ value }) => typeof value === "string" ? (one) => one[value] : value;
  const body = node("tbody");
  const heads = columns.map((column) => node("th", { scope: "col", class: column.number ? "number" : null },
    column.value && column.title ? button(column.title, () => order(column), { class: "sort" }) : column.title));

  function order(column) {
    by = { column, down: by?.column === column ? !by.down : Boolean(column.number) };
    draw();
  }

  function draw() {
    if (by) {
      const sign = by.down ? -1 : 1, key = read(by.column);
      rows.sort((one, other) => sign * compare(key(one), key(other)));
    }
    columns.forEach((column, index) => {
      if (by?.column === column) heads[index].setAttribute("aria-sort", by.down ? "descending" : "ascending");
      else heads[index].removeAttribute("aria-sort");
    });
    body.replaceChildren(...rows.map((one) => node("tr", {}, columns.map((column) => {
      const found = column.show ? column.show(one) : (column.as ?? short)(read(column)(one));
      return node("td", { class: column.number ? "number" : null, "data-title": column.title }, found);
    }))));
  }

  draw();
  const filled = node("table", {}, node("caption", {}, caption), node("thead", {}, node("tr", {}, heads)), body);
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    filled, rows.length ? null : node("p", { class: "empty" }, empty));
}

function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

// A listing that the server divides into pages. `load(cursor, limit)` returns a page, `draw(items)` an element.
// With `once`, each cursor works once, so the only way back is to the first page.
// With `fill`, incomplete pages are joined.
export function pages(context, load, draw, { limit = 50, once = false, fill = false } = {}) {
  const found = node("div"), place = node("span", { class: "soft", role: "status" });
  let cursors = [""], next = "", run = 0;
  const back = button(once ? "First page" : "Previous", () => {
    if (once) cursors = [""];
    else cursors.pop();
    show();
  });
  const more = button("Next", () => { cursors.push(next); show(); });
  const size = choice("Rows", "rows", ["25", "50", "100"], { value: limit, onchange: (event) => {
    limit = Number(event.target.value);
    restart();
  } });
  const bar = node("div", { class: "row pager" }, back, more, place, size);

  async function full(cursor, mine) {
    const page = await load(cursor, limit);
    while (fill && page.cursor && page.items.length < limit && mine === run) {
      place.textContent = "Searching…";
      bar.hidden = false;
      const more = await load(page.cursor, limit - page.items.length);
      page.items.push(...more.items);
      page.cursor = more.cursor;
    }
    return page;
  }

  function show() {
    return context.attempt(async () => {
      const mine = run += 1;
      let page;
      try {
        page = await full(cursors.at(-1), mine);
      } catch (error) {
        if (error.status !== 410 || cursors.length === 1) throw error;
        context.say("The broker has restarted: this is the first page again.");
        cursors = [""];
        page = await full("", mine);
      }
      if (mine !== run) return; // another page was asked for meanwhile
      next = page.cursor;
      found.replaceChildren(draw(page.items));
      back.disabled = cursors.length === 1;
      more.disabled = !next;
      place.textContent = `Page ${cursors.length}, ${page.items.length} rows`;
      bar.hidden = cursors.length === 1 && !next && page.items.length < 25;
    });
  }

  function restart() {
    cursors = [""];
    return show();
  }

  return { element: node("div", {}, found, bar), show, restart };
}
