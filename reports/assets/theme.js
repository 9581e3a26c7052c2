"use strict";
(() => {
  const root = document.documentElement;
  root.classList.replace("no-js", "js");
  let chosen;
  try {
    chosen = localStorage.getItem("tuner-report-theme");
  } catch {}
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
})();
