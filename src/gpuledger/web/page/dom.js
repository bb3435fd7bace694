// Creates and changes elements. Text is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function el(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function svg(tag, given = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Unchanged text is not touched: that saves layout, and screen readers stay silent.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

// A formatted number, with the exact value for programs.
export function tell(node, value, shown) {
  say(node, shown);
  mark(node, "value", value ?? null);
}

// Replace the children of a node; children that stay in place keep their focus.
export function arrange(parent, children) {
  const wanted = new Set(children);
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let place = parent.firstElementChild;
  for (const child of children) {
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

// Text with commands in backticks.
export function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", { text: part }) : part));
}

// A click on text or space, not on a control and not at the end of a selection.
export function isPlainClick(event) {
  return !event.target.closest("a, button, input, select, label") && !String(getSelection());
}
