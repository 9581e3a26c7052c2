"use strict";
(() => {
  const root = document.documentElement;
  const each = (selector, action, within = document) =>
    within.querySelectorAll(selector).forEach(action);

  // -- theme ------------------------------------------------------------------------------------
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme-toggle");
  let printing = false;
  // Width of a figure on A4 and on letter paper.
  const PAPER_PX = 660;

  const isDark = () =>
    !printing && (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

  const showTheme = () => {
    toggle.textContent = isDark() ? "Light theme" : "Dark theme";
    each("[data-plotted]", draw);
  };

  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("tuner-report-theme", root.dataset.theme);
    } catch {
      // A page without storage keeps the choice until it is closed.
    }
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);

  // -- figures ----------------------------------------------------------------------------------
  function draw(plot) {
    let text = plot.parentElement.querySelector(":scope > script").textContent;
    if (isDark()) {
      for (const [light, dark] of Object.entries(themes.dark_of)) text = text.replaceAll(light, dark);
    }
    const figure = JSON.parse(text);
    figure.layout.template = isDark() ? themes.dark : themes.light;
    if (printing) figure.layout.width = Math.min(PAPER_PX, plot.clientWidth);
    plot.dataset.plotted = isDark() ? "dark" : "light";
    plot.role = "group";
    plot.ariaLabel = "figure, described below";
    return Plotly.react(plot, figure.data, figure.layout, { ...themes.config });
  }

  const sight = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        sight.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "300px" },
  );
  const watchPlots = () => each(".plot", (plot) => sight.observe(plot));
  watchPlots();
  // Of a page that is served, when its contents were replaced.
  document.addEventListener("renewed", watchPlots);

  // Paper shows what is unfolded.
  window.addEventListener("beforeprint", () => {
    printing = true;
    each(".plot", (plot) => plot.checkVisibility() && draw(plot));
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    each("[data-plotted]", draw);
  });
  document.getElementById("unfold")?.addEventListener("click", () =>
    each("section > details, details.task", (part) => part.setAttribute("open", "")),
  );

  // -- all trials of a task: only the rows in view are in the document --------------------------
  const ROW_PX = 32;
  const AROUND = 10;

  const element = (tag, text, className = "") =>
    Object.assign(document.createElement(tag), { textContent: text, className });

  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

  const makeRow = (task, fastest, trial) => {
    const [number, status, time, samples, registers, config, message] = trial;
    const row = document.createElement("tr");
    const numbers = [
      time === null ? "" : format.format(time),
      time === null ? "" : `${(time / fastest).toFixed(2)}x`,
      samples || "",
      registers ?? "",
    ];
    const last = element("td", message ? `${message} (${config})` : config, "long");
    last.title = last.textContent;
    const copy = document.createElement("td");
    const button = element("button", "Copy", "copy");
    button.type = "button";
    copy.append(element("code", `tuner show ${task}/${number}`), " ", button);
    row.append(
      ...[number, status].map((text) => element("td", text)),
      ...numbers.map((text) => element("td", text, "number")),
      last,
      copy,
    );
    return row;
  };

  const listTrials = (task) => {
    const box = task.querySelector(".trials");
    if (box.dataset.listed) return;
    box.dataset.listed = "yes";
    const trials = JSON.parse(task.querySelector(".trial-rows").textContent);
    if (!trials.rows.length) return;
    box.append(document.getElementById("trials-table").content.cloneNode(true));
    const [status, order] = box.querySelectorAll("select");
    const scroll = box.querySelector(".scroll");
    const body = box.querySelector("tbody");
    const timeOf = ([, , time]) => time ?? Number.MAX_VALUE;
    const fastest = trials.rows.reduce((least, row) => Math.min(least, timeOf(row)), Infinity);
    let chosen = [];

    const spacer = (rows) => {
      const row = document.createElement("tr");
      row.style.height = `${rows * ROW_PX}px`;
      return row;
    };
    let filled = "";
    const fill = () => {
      // In steps, so that a row stays the same element while it is read or clicked.
      const top = Math.floor(scroll.scrollTop / ROW_PX / AROUND) * AROUND;
      const first = Math.max(0, top - AROUND);
      const end = top + Math.ceil(scroll.clientHeight / ROW_PX) + 2 * AROUND;
      if (filled === `${first} ${end}`) return;
      filled = `${first} ${end}`;
      const rows = chosen.slice(first, end).map((row) => makeRow(trials.task, fastest, row));
      body.replaceChildren(
        spacer(first),
        ...rows,
        spacer(Math.max(0, chosen.length - end)),
      );
    };
    const choose = () => {
      chosen = trials.rows.filter(([, state]) => !status.value || state === status.value);
      if (order.value === "time") chosen.sort((a, b) => timeOf(a) - timeOf(b));
      const total = trials.rows.length;
      box.querySelector("[aria-live]").textContent = `${chosen.length} of ${total} shown`;
      scroll.scrollTop = 0;
      filled = "";
      fill();
    };
    for (const each of new Set(trials.rows.map(([, state]) => state))) {
      status.append(new Option(each));
    }
    scroll.setAttribute("aria-label", `All trials of ${task.querySelector(".name").innerText}`);
    box.addEventListener("change", choose);
    scroll.addEventListener("scroll", fill);
    choose();
  };

  // What is folded stands in the page as text: without scripts it is shown, with scripts it becomes
  // elements when its task is opened, or when nothing else is to be done, so that the browser's
  // search finds it. Hundreds of tasks at once would take seconds.
  const fill = (task) => {
    const text = task.querySelector(":scope > noscript");
    if (!text) return;
    text.outerHTML = text.textContent;
    each(".plot", (plot) => sight.observe(plot), task);
  };

  const unfold = (task) => {
    fill(task);
    listTrials(task);
  };

  const later = window.requestIdleCallback ?? ((action) => setTimeout(action, 50));
  const fillNext = () => {
    const text = document.querySelector("details.task > noscript");
    if (!text) return;
    fill(text.parentElement);
    later(fillNext);
  };
  later(fillNext);

  each("details.task", (task) => {
    task.addEventListener("toggle", () => task.open && unfold(task));
    if (task.open) unfold(task);
  });

  // -- tables: sort -----------------------------------------------------------------------------
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.sort ?? cell.textContent.trim();
  };

  const compare = (left, right, numeric, sign) => {
    if (left === "" || right === "") return (left === "") - (right === "");
    if (numeric) return sign * (Number(left) - Number(right));
    return sign * left.localeCompare(right, "en", { numeric: true });
  };

  const sortBy = (table, heading) => {
    const ascending = heading.getAttribute("aria-sort") !== "ascending";
    const column = heading.cellIndex;
    const numeric = heading.dataset.kind === "number";
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
    rows.sort((a, b) => compare(a[0], b[0], numeric, ascending ? 1 : -1));
    body.append(...rows.map(([, row]) => row));
    each("th[aria-sort]", (other) => other.setAttribute("aria-sort", "none"), table);
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  };

  each("table.sortable", (table) =>
    each(
      "th[aria-sort] button",
      (button) => button.addEventListener("click", () => sortBy(table, button.closest("th"))),
      table,
    ),
  );

  // -- tables: filter ---------------------------------------------------------------------------
  each("[data-filters]", (bar) => {
    const table = document.getElementById(bar.dataset.filters);
    const shown = bar.querySelector("[data-shown]");
    const words = bar.querySelector("input[type=search]");
    const choices = [...bar.querySelectorAll("select")];
    const apply = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let visible = 0;
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        const keep =
          wanted.every((word) => text.includes(word)) &&
          choices.every((choice) => !choice.value || row.dataset[choice.name] === choice.value);
        row.hidden = !keep;
        visible += keep;
      }
      shown.textContent = `${visible} of ${table.tBodies[0].rows.length} shown`;
    };
    bar.addEventListener("input", apply);
  });

  // -- tables: download as CSV ------------------------------------------------------------------
  const csvField = (text) => {
    const plain = text.replace(/\s+/g, " ").trim();
    // A spreadsheet would run a text that begins like a formula.
    const safe = /^[=+@\-\t]/.test(plain) && Number.isNaN(Number(plain)) ? `'${plain}` : plain;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  each("[data-csv]", (button) =>
    button.addEventListener("click", () => {
      const records = JSON.parse(document.getElementById(button.dataset.csv).textContent);
      const lines = records.map((record) => record.map((v) => csvField(String(v ?? ""))).join(","));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
      link.download = button.dataset.file;
      link.click();
      URL.revokeObjectURL(link.href);
    }),
  );

  // -- copy -------------------------------------------------------------------------------------
  const copyText = async (text) => {
    // At once and without a permission, unlike the clipboard's own interface, whose answer may
    // never come.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (done) return true;
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  };

  document.addEventListener("click", async ({ target }) => {
    const button = target.closest("button.copy");
    if (!button) return;
    const done = await copyText(button.parentElement.querySelector("code").textContent);
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1200);
    button.focus();
  });

  // -- deep links -------------------------------------------------------------------------------
  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let node = target.querySelector(":scope > .part") ?? target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", openTarget);
  if (location.hash) openTarget();
  showTheme();
})();
