// Live pages, local time, keys and colours. Every page works without this script as well.
"use strict";
const $ = (id) => document.getElementById(id);
const live = $("live");

// -- what a page of text cannot do: times of this place, labels of cells for narrow screens

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
// 24 hours, as in the log
const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const timeOnly = new Intl.DateTimeFormat(undefined, clock);
const dayAndTime = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", ...clock });

function prepare(root) {
  const today = new Date().toDateString();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (isNaN(at)) continue;
    element.title = `${element.textContent.trim()} (shown in ${zone})`;
    element.textContent = (at.toDateString() === today ? timeOnly : dayAndTime).format(at);
  }
  for (const table of root.querySelectorAll("table")) {
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    if (!names.length) continue;
    table.classList.add("cards");
    for (const row of [...table.tBodies].flatMap((body) => [...body.rows])) {
      let column = 0;
      for (const cell of row.cells) {
        if (cell.tagName === "TD" && cell.colSpan === 1 && names[column]) cell.dataset.label = names[column];
        column += cell.colSpan;
      }
    }
  }
  for (const element of root.querySelectorAll("[data-needs-script]")) element.hidden = false;
}

// -- times that are searched for: by the clock of this place, unless the address says which

for (const field of document.querySelectorAll("input[data-zone]")) {
  const ahead = -new Date().getTimezoneOffset();
  const parts = [Math.trunc(Math.abs(ahead) / 60), Math.abs(ahead) % 60].map((part) => String(part).padStart(2, "0"));
  field.value = ahead;
  for (const name of field.form.querySelectorAll(".clock"))
    if (ahead) name.textContent = `UTC${ahead < 0 ? "-" : "+"}${parts.join(":")}`;
}

// -- live: what has changed is changed, so that focus, selection, scrolling and what is open stay

const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE && (node.dataset.key || node.id || null);
const isSame = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

function patchAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // Whether it is open is up to its reader.
    if (!fresh.hasAttribute(name) && !(name === "open" && old.tagName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name === "open" && old.tagName === "DETAILS") continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function patch(old, fresh) {
  if (old.isEqualNode(fresh) || (old.nodeType === Node.ELEMENT_NODE && old.hasAttribute("data-keep"))) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  patchAttributes(old, fresh);
  patchChildren(old, fresh);
}

function patchChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    let found = key ? keyed.get(key) : place;
    if (!key) while (found && keyOf(found)) found = found.nextSibling;
    if (found && isSame(found, wanted)) {
      keyed.delete(key);
      if (found === place) place = place.nextSibling;
      else old.insertBefore(found, place);
      patch(found, wanted);
    } else {
      old.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

let waiting = null;
const isPaused = () => $("pause").getAttribute("aria-pressed") === "true";
const isSelecting = () => {
  const selection = document.getSelection();
  return !selection.isCollapsed && live.contains(selection.anchorNode);
};

function show() {
  if (waiting === null || isPaused() || isSelecting()) return;
  const fresh = document.createElement("template");
  fresh.innerHTML = waiting;
  waiting = null;
  prepare(fresh.content);
  const focused = live.contains(document.activeElement) ? document.activeElement : null;
  patchChildren(live, fresh.content);
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function connection(state, words) {
  $("connection").className = `status ${state}`;
  if ($("connection").textContent !== words) $("connection").textContent = words;
}

let source = null;
function listen() {
  if (source || document.hidden) return;
  source = new EventSource(live.dataset.live);
  source.onopen = () => connection(isPaused() ? "" : "live", isPaused() ? "Paused" : "Live");
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) connection("away", "Signed out");
    else connection("away", "Connecting…");
  };
  source.onmessage = (event) => {
    waiting = JSON.parse(event.data);
    show();
  };
}

function togglePause() {
  const paused = !isPaused();
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").querySelector("span").textContent = paused ? "Go on" : "Pause";
  connection(paused ? "" : "live", paused ? "Paused" : "Live");
  show();
}

prepare(document);
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
if (live) {
  $("pause").hidden = false;
  $("pause").addEventListener("click", togglePause);
  document.addEventListener("selectionchange", show);
  // A page that nobody sees costs the gateway nothing.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return listen();
    source?.close();
    source = null;
  });
  listen();
}

// -- colours

const themes = ["", "light", "dark"];
if ($("theme")) {
  const label = () => {
    const theme = document.documentElement.dataset.theme || "";
    $("theme").querySelector("span").textContent = { "": "System colours", light: "Light", dark: "Dark" }[theme];
  };
  $("theme").addEventListener("click", () => {
    const theme = themes[(themes.indexOf(document.documentElement.dataset.theme || "") + 1) % themes.length];
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // Storage is switched off: the choice is this page's.
    }
    label();
  });
  label();
}

// -- copying, and rows that are links as a whole

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    const text = $(button.dataset.copy);
    const done = () => {
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done);
    else document.getSelection().selectAllChildren(text);
    return;
  }
  const row = event.target.closest("tbody tr");
  if (row && !event.target.closest("a, button, input, select, summary, label, pre") && document.getSelection().isCollapsed)
    row.querySelector("th a")?.click();
});

// -- keys

const isWriting = (element) => element.matches("input, textarea, select, [contenteditable]");

function moveInRows(step) {
  const links = [...document.querySelectorAll("main tbody th a")];
  if (!links.length) return;
  const row = document.activeElement.closest?.("tbody tr");
  const at = row ? links.indexOf(row.querySelector("th a")) : step > 0 ? -1 : links.length;
  links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
}

let prefix = -Infinity;
const keys = {
  j: () => moveInRows(1),
  k: () => moveInRows(-1),
  "/": () => document.querySelector("main input[type=search]")?.select(),
  "?": () => $("keys")?.showModal(),
  p: () => live && togglePause(),
  t: () => $("theme")?.click(),
  n: () => document.querySelector("main a[rel=next]")?.click(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.key === "Escape" && isWriting(event.target)) return event.target.blur();
  if (isWriting(event.target) || $("keys")?.open) return;
  const page = event.timeStamp - prefix < 1500 && document.querySelector(`nav a[data-shortcut="${CSS.escape(event.key)}"]`);
  prefix = event.key === "g" && !page ? event.timeStamp : -Infinity;
  const act = page ? () => page.click() : keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
$("show-keys")?.addEventListener("click", () => $("keys").showModal());
