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
    toggle.setAttribute("aria-pressed", String(isDark()));
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

  // -- trials of a task, as columns -------------------------------------------------------------
  const decode = (column) =>
    Array.isArray(column) ? column : column.of.map((place) => column.values[place]);

  // Inflate of RFC 1951 behind a header of RFC 1950, at once: printing waits for no promise.
  const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
  const inflate = (bytes) => {
    let [at, held, left, size] = [2, 0, 0, 0];
    let out = new Uint8Array(8 * bytes.length);
    const bits = (wanted) => {
      while (left < wanted) {
        held |= bytes[at++] << left;
        left += 8;
      }
      const value = held & ((1 << wanted) - 1);
      held >>>= wanted;
      left -= wanted;
      return value;
    };
    const write = (byte) => {
      if (size === out.length) {
        const larger = new Uint8Array(2 * size);
        larger.set(out);
        out = larger;
      }
      out[size++] = byte;
    };
    // A code by the lengths of its words: how many words have each length, and their symbols.
    const makeCode = (lengths) => {
      const counts = new Array(16).fill(0);
      for (const length of lengths) counts[length] += length > 0;
      const places = [...lengths.keys()].filter((symbol) => lengths[symbol]);
      return { counts, symbols: places.sort((a, b) => lengths[a] - lengths[b] || a - b) };
    };
    const read = ({ counts, symbols }) => {
      let [code, first, index] = [0, 0, 0];
      for (let length = 1; length < 16; length++) {
        code |= bits(1);
        if (code < first + counts[length]) return symbols[index + code - first];
        index += counts[length];
        first = (first + counts[length]) << 1;
        code <<= 1;
      }
      throw new Error("the data of a task is damaged");
    };
    const readCodes = () => {
      const [words, distances, used] = [257 + bits(5), 1 + bits(5), 4 + bits(4)];
      const own = new Array(19).fill(0);
      for (const place of ORDER.slice(0, used)) own[place] = bits(3);
      const code = makeCode(own);
      const lengths = [];
      while (lengths.length < words + distances) {
        const word = read(code);
        if (word < 16) lengths.push(word);
        else {
          const value = word === 16 ? lengths.at(-1) : 0;
          const times = word === 16 ? 3 + bits(2) : word === 17 ? 3 + bits(3) : 11 + bits(7);
          for (let n = 0; n < times; n++) lengths.push(value);
        }
      }
      return [makeCode(lengths.slice(0, words)), makeCode(lengths.slice(words))];
    };
    const fixed = [...Array(288).keys()].map((n) => (n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8));
    let last = 0;
    while (!last) {
      last = bits(1);
      const kind = bits(2);
      if (kind === 0) {
        [held, left] = [0, 0];
        const end = at + 4 + bytes[at] + 256 * bytes[at + 1];
        for (at += 4; at < end; at++) write(bytes[at]);
        continue;
      }
      const [words, distances] =
        kind === 1 ? [makeCode(fixed), makeCode(new Array(30).fill(5))] : readCodes();
      for (let word = read(words); word !== 256; word = read(words)) {
        if (word < 256) {
          write(word);
          continue;
        }
        const wide = word < 265 || word === 285 ? 0 : (word - 261) >> 2;
        const least = word === 285 ? 258 : word < 265 ? word - 254 : 3 + ((4 + ((word - 265) & 3)) << wide);
        const length = least + bits(wide);
        const step = read(distances);
        const far = step < 4 ? 0 : (step - 2) >> 1;
        const back = (step < 4 ? step + 1 : 1 + ((2 + (step & 1)) << far)) + bits(far);
        for (let n = 0; n < length; n++) write(out[size - back]);
      }
    }
    return out.subarray(0, size);
  };

  // The figures and trials of a task are base64 of deflated JSON (see `pack` in view.py).
  const readPacked = (node) => {
    const bytes = Uint8Array.from(atob(node.textContent), (letter) => letter.charCodeAt(0));
    const { figures, trials } = JSON.parse(new TextDecoder().decode(inflate(bytes)));
    for (const name of ["status", "samples", "registers", "message"]) {
      trials[name] = decode(trials[name]);
    }
    trials.config = trials.config.map(([name, column]) => [name, decode(column)]);
    return { figures, trials };
  };

  const packed = new WeakMap();
  const unpack = (task) => {
    if (!packed.has(task)) packed.set(task, readPacked(task.querySelector("script.packed")));
    return packed.get(task);
  };

  const describeConfig = (trials, place) =>
    trials.config
      .filter(([, column]) => column[place] !== null)
      .map(([name, column]) => `${name}=${column[place]}`)
      .join(" ");

  // Text for a Plotly label, as plot_text in quantity.py.
  const escapeText = (text, limit) => {
    const half = (limit - 1) >> 1;
    const short = text.length > limit ? `${text.slice(0, half)}…${text.slice(-half)}` : text;
    return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  };

  // An array of a figure: one value for each timed trial.
  const makeColumn = (trials, name) => {
    const places = [...trials.time.keys()].filter((place) => trials.time[place] !== null);
    const fastest = places.reduce((least, place) => Math.min(least, trials.time[place]), Infinity);
    const value = {
      place: (place) => place + 1,
      slowdown: (place) => trials.time[place] / (fastest || 1),
      config: (place) => escapeText(describeConfig(trials, place), 90),
    }[name];
    return places.map(value ?? ((place) => trials[name][place]));
  };

  const fillColumns = (figure, trials) => {
    for (const trace of figure.data) {
      for (const [key, value] of Object.entries(trace)) {
        if (value?.column) trace[key] = makeColumn(trials, value.column);
      }
    }
  };

  // -- figures ----------------------------------------------------------------------------------
  const sources = new WeakMap();

  const read = (plot) => {
    const own = plot.parentElement.querySelector(":scope > script");
    if (own) return { text: own.textContent };
    const { figures, trials } = unpack(plot.closest("details.task"));
    return { text: JSON.stringify(figures[plot.parentElement.id.slice("figure-".length)]), trials };
  };

  function draw(plot) {
    let { text, trials } = sources.get(plot);
    if (isDark()) {
      for (const [light, dark] of Object.entries(themes.dark_of)) text = text.replaceAll(light, dark);
    }
    const figure = JSON.parse(text);
    fillColumns(figure, trials);
    figure.layout.template = isDark() ? themes.dark : themes.light;
    if (printing) figure.layout.width = Math.min(PAPER_PX, plot.clientWidth);
    plot.dataset.plotted = isDark() ? "dark" : "light";
    plot.role = "group";
    plot.ariaLabel = "figure, described below";
    return Plotly.react(plot, figure.data, figure.layout, { ...themes.config });
  }

  const show = (plot) => {
    if (!sources.has(plot)) sources.set(plot, read(plot));
    return draw(plot);
  };

  const sight = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        sight.unobserve(entry.target);
        show(entry.target);
      }
    },
    { rootMargin: "300px" },
  );
  const watchPlots = () => each(".plot", (plot) => sight.observe(plot));
  watchPlots();
  // Of a page that is served, when its contents were replaced.
  document.addEventListener("renewed", watchPlots);

  // Paper shows every task with its figures; those that were folded are then folded again.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    folded = [...document.querySelectorAll("details.task:not([open])")];
    folded.forEach((task) => {
      fill(task);
      task.open = true;
    });
    each(".plot", show);
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const task of folded) {
      task.open = false;
      each("[data-plotted]", (plot) => {
        Plotly.purge(plot);
        delete plot.dataset.plotted;
        sight.observe(plot);
      }, task);
    }
    each("[data-plotted]", draw);
  });

  // -- all trials of a task: only the rows in view are in the document --------------------------
  const ROW_PX = 32;
  const AROUND = 10;

  const element = (tag, text, className = "") =>
    Object.assign(document.createElement(tag), { textContent: text, className });

  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

  const makeRow = (trials, fastest, place) => {
    const row = document.createElement("tr");
    const time = trials.time[place];
    const texts = [trials.number[place], trials.status[place]];
    const numbers = [
      time === null ? "" : format.format(time),
      time === null ? "" : `${(time / fastest).toFixed(2)}x`,
      trials.samples[place] || "",
      trials.registers[place] ?? "",
    ];
    const config = describeConfig(trials, place);
    const message = trials.message[place];
    const last = element("td", message ? `${message} (${config})` : config, "long");
    last.title = last.textContent;
    const copy = document.createElement("td");
    const button = element("button", "Copy", "copy");
    button.type = "button";
    copy.append(element("code", `tuner show ${trials.task}/${trials.number[place]}`), " ", button);
    row.append(
      ...texts.map((text) => element("td", text)),
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
    const { trials } = unpack(task);
    if (!trials.number.length) return;
    box.append(document.getElementById("trials-table").content.cloneNode(true));
    const [status, order] = box.querySelectorAll("select");
    const scroll = box.querySelector(".scroll");
    const body = box.querySelector("tbody");
    const fastest = trials.time.reduce((least, time) => Math.min(least, time ?? least), Infinity);
    const timeOf = (place) => trials.time[place] ?? Number.MAX_VALUE;
    let places = [];

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
      const rows = places.slice(first, end).map((place) => makeRow(trials, fastest, place));
      body.replaceChildren(
        spacer(first),
        ...rows,
        spacer(Math.max(0, places.length - end)),
      );
    };
    const choose = () => {
      places = [...trials.number.keys()];
      places = places.filter((place) => !status.value || trials.status[place] === status.value);
      if (order.value === "time") places.sort((a, b) => timeOf(a) - timeOf(b));
      const total = trials.number.length;
      box.querySelector("[aria-live]").textContent = `${places.length} of ${total} shown`;
      scroll.scrollTop = 0;
      filled = "";
      fill();
    };
    for (const each of new Set(trials.status)) status.append(new Option(each));
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
    task.addEventListener("toggle", () => task.open && !printing && unfold(task));
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
    for (let node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", openTarget);
  if (location.hash) openTarget();
  showTheme();
})();
