// Sets the colours that somebody has chosen before anything is painted.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the colours are the system's.
}
