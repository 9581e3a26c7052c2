"use strict";
(() => {
  const root = document.documentElement;
  root.classList.replace("no-js", "js");
  let chosen = null;
  try {
    chosen = localStorage.getItem("tuner-report-theme");
  } catch {
    chosen = null;
  }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
})();
