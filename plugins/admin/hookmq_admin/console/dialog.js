// Asks before a change, in a modal dialog that the keyboard can use.
import { node, values } from "./dom.js";

// Return the values of `fields`, or null if the person cancelled.
export function confirmed(title, text, { fields = [], action = title, danger = true } = {}) {
  return new Promise((resolve) => {
    const form = node("form", { method: "dialog" },
      node("h2", { id: "asked" }, title), node("p", {}, text), ...fields,
      node("div", { class: "row end" },
        node("button", { type: "button", onclick: () => box.close() }, "Cancel"),
        node("button", { class: danger ? "danger" : "main", value: "yes" }, action)));
    const box = node("dialog", { "aria-labelledby": "asked", onclose: () => {
      const found = box.returnValue === "yes" ? values(form) : null;
      box.remove();
      resolve(found);
    } }, form);
    document.body.append(box);
    box.showModal();
    addEventListener("hashchange", () => box.close(), { once: true });
  });
}

// Show `children` until the person closes the dialog.
export function shown(title, ...children) {
  const box = node("dialog", { "aria-labelledby": "asked", onclose: () => box.remove() },
    node("form", { method: "dialog" }, node("h2", { id: "asked" }, title), ...children,
      node("div", { class: "row end" }, node("button", { class: "main" }, "Close"))));
  document.body.append(box);
  box.showModal();
  addEventListener("hashchange", () => box.close(), { once: true });
}
