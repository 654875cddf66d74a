/** Buttons that copy a command, and texts of others made visible in pages that the server writes. */

import { element, setText, visible, visibleBody } from "./dom.js";

/** Words of a command, for a shell. */
export function commandLine(words) {
  return words.map((word) => (/^[\w@%+=:,./…-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
}

/** A command and the button that copies it; one with words that only its user knows is no command to paste. */
export function command(text) {
  if (text.includes("…")) return element("div", "command", element("code", "", text));
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.dataset.copy = text;
  return element("div", "command", element("code", "", text), button);
}

async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    // Without TLS a browser has no clipboard for pages of other hosts: the command is selected instead.
    getSelection().selectAllChildren(button.previousElementSibling);
    return document.execCommand("copy") ? "Copied" : "Selected: press Ctrl-C";
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  setText(button, await copied(button.dataset.copy, button));
  setTimeout(() => setText(button, "Copy"), 3000);
});

// One of those with the same name is open at a time, also where the browser does not see to it.
document.addEventListener(
  "toggle",
  ({ target }) => {
    if (!target.open || !target.getAttribute("name")) return;
    for (const one of document.getElementsByName(target.getAttribute("name"))) if (one !== target) one.open = false;
  },
  true,
);

for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
for (const node of document.querySelectorAll("[data-visible]")) {
  setText(node, (node.closest("pre") ? visibleBody : visible)(node.textContent));
}
