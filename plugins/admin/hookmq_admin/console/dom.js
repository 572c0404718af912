// Builds elements. All text from the broker is set as text, never as HTML.

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

export function section(title, ...children) {
  return node("section", { "aria-label": title }, node("h3", {}, title), ...children);
}
