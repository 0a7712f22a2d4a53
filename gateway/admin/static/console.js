// Puts what the server sends in the place of what it sent before, unless somebody is using it.
"use strict";
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const connection = document.getElementById("connection");
let waiting = null;

const isInUse = () =>
  pause.getAttribute("aria-pressed") === "true" ||
  (live.contains(document.activeElement) && document.activeElement.tagName !== "A") ||
  live.querySelector("details[open]") !== null ||
  !document.getSelection().isCollapsed;

function show() {
  if (waiting === null || isInUse()) return;
  const link = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const places = [...live.querySelectorAll(".wide")].map((element) => element.scrollLeft);
  live.innerHTML = waiting;
  waiting = null;
  [...live.querySelectorAll(".wide")].forEach((element, n) => (element.scrollLeft = places[n] ?? 0));
  if (link !== null) live.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
}

if (live) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    const paused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    show();
  });
  const source = new EventSource(live.dataset.live);
  source.onopen = () => (connection.textContent = "");
  source.onerror = () => {
    connection.textContent = source.readyState === EventSource.CLOSED ? "Signed out" : "Connecting…";
  };
  source.onmessage = (event) => {
    waiting = JSON.parse(event.data);
    show();
  };
  setInterval(show, 1000);
}
