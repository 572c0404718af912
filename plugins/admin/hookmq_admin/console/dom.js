// Builds elements and modal dialogs. All text from the broker is set as text, never as HTML.
import { short } from "./format.js";

export function node(name, fields = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(fields)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function shape(name, fields = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A labelled input. `options` are its attributes.
export function field(title, name, options = {}) {
  return node("label", {}, title, node("input", { name, autocomplete: "off", spellcheck: "false", ...options }));
}

export function area(title, name, options = {}) {
  return node("label", { class: "wide" }, title, node("textarea", { name, spellcheck: "false", rows: 3, ...options }));
}

// `choices` are texts, or pairs of a value and a text.
export function choice(title, name, choices, options = {}) {
  const { value: chosen = "", ...fields } = options;
  return node("label", {}, title, node("select", { name, ...fields }, choices.map((one) => {
    const [value, text] = Array.isArray(one) ? one : [one, one];
    return node("option", { value, selected: String(value) === String(chosen) }, text);
  })));
}

export function check(title, name, options = {}) {
  return node("label", { class: "check" }, node("input", { type: "checkbox", name, ...options }), title);
}

// A form that calls `run` with the values of its fields.
export function form(fields, action, run, options = {}) {
  return node("form", { ...options, onsubmit: (event) => {
    event.preventDefault();
    run(values(event.target), event.target);
  } }, ...fields, node("button", { class: "main" }, action));
}

export function values(element) {
  const found = Object.fromEntries(new FormData(element));
  for (const box of element.querySelectorAll("input[type=checkbox]")) found[box.name] = box.checked;
  return found;
}

export function button(title, run, options = {}) {
  return node("button", { type: "button", ...options, onclick: run }, title);
}

// A list of names and values, from an object or pairs.
export function pairs(values, options = {}) {
  return node("dl", options, (Array.isArray(values) ? values : Object.entries(values)).map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, short(value)))));
}

export function badge(text, kind = "") {
  return node("span", { class: `badge ${kind}` }, text);
}

export function section(title, ...children) {
  return node("section", { "aria-label": title }, node("h3", {}, title), ...children);
}

// Ask before a change, in a dialog that the keyboard can use.
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
