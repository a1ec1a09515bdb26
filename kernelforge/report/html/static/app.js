// What a report does beyond being read: theme, sorting, filtering, tabs, colours of code. Without it every page is whole.
//
// The state of a page is behind a "?" in the address's fragment, so that an address is a permalink:
// #matrix?verdict=WRONG&q=softmax is the part "matrix" with two filters set.
"use strict";

(() => {
  const root = document.documentElement;
  const LONGEST_COLOURED = 200_000; // characters; longer code stays plain

  // --- theme

  const THEMES = ["auto", "light", "dark"];

  /** The theme that is set, by early.js at first. */
  function theme() {
    return root.dataset.theme || "auto";
  }

  function themeButton() {
    const button = document.querySelector("button.theme");
    if (!button) return;
    const tell = () => (button.textContent = `Theme: ${theme()}`);
    tell();
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
      if (next === "auto") delete root.dataset.theme;
      else root.dataset.theme = next;
      try {
        localStorage.setItem("kernelforge-theme", next);
      } catch {
        // it lasts as long as this page
      }
      tell();
    });
  }

  // --- the fragment: a part of the page, and its state

  function fragment() {
    const [part, query] = location.hash.slice(1).split("?", 2);
    return { part: decoded(part), state: new URLSearchParams(query || "") };
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text; // no address of ours
    }
  }

  function setFragment(part, state) {
    const query = state.toString();
    history.replaceState(null, "", `#${part}${query ? `?${query}` : ""}`);
  }

  // --- one file: with a state behind it, a fragment names no element to the browser

  function showSection() {
    if (!document.querySelector(".page")) return;
    const { part } = fragment();
    const target = part ? document.getElementById(part) : null;
    const page = (target && target.closest(".page")) || document.querySelector(".page.first");
    document.body.classList.add("chosen");
    for (const shown of document.querySelectorAll(".page.shown")) shown.classList.remove("shown");
    page.classList.add("shown");
    document.title = `${page.getAttribute("aria-label")} · KernelForge`;
    if (target && target !== page) target.scrollIntoView();
    else scrollTo(0, 0);
  }

  // --- tables: a click on a heading sorts

  function sortable(table) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      if (heading.tagName !== "TH" || heading.querySelector("button") || heading.hasAttribute("data-unsorted")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, headings, column));
      heading.append(button);
    });
  }

  function sort(table, headings, column) {
    const heading = headings[column];
    const first = heading.classList.contains("num") ? "descending" : "ascending";
    const order = heading.ariaSort === first ? (first === "ascending" ? "descending" : "ascending") : first;
    for (const other of headings) other.removeAttribute("aria-sort");
    heading.ariaSort = order;
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, index) => ({ row, index, key: keyOf(row.cells[column]) }));
    rows.sort((a, b) => compare(a.key, b.key, sign) || a.index - b.index);
    body.append(...rows.map(({ row }) => row));
  }

  function keyOf(cell) {
    if (!cell) return null;
    const value = cell.dataset.value;
    if (value !== undefined) return value === "true" ? 1 : value === "false" ? 0 : Number(value);
    const text = cell.textContent.trim();
    return text === "–" || text === "" ? null : text;
  }

  /** Cells without a value stand last in either order. */
  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b) || 0;
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  // --- the task matrix: filters

  function filterable(form) {
    const section = document.getElementById(form.dataset.filters);
    const part = section.id;
    const count = form.querySelector("output");
    const rows = [...section.querySelectorAll(".matrix tbody tr")].map((row) => ({
      row,
      task: row.dataset.task,
      level: row.dataset.level,
      tags: (row.dataset.tags || "").split(" "),
      seconds: Number(row.dataset.seconds || 0),
      dollars: Number(row.dataset.dollars || 0),
      own: row.textContent.toLowerCase(),
      cells: [...row.querySelectorAll(".cells a")].map((cell) => ({
        cell,
        verdict: cell.dataset.verdict,
        stage: cell.dataset.stage,
        reached: Number(cell.dataset.reached || 0),
        text: cell.title.toLowerCase(),
        out: false,
      })),
      hidden: false,
    }));
    const others = [...section.querySelectorAll("table:not(.matrix) tr[data-task]")];
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      setFragment(part, stateOf(form));
      apply();
    });
    form.addEventListener("reset", () => setTimeout(() => form.dispatchEvent(new Event("input"))));

    function apply() {
      const state = stateOf(form);
      const wanted = Object.fromEntries(state);
      const words = (wanted.q || "").toLowerCase().split(/\s+/).filter(Boolean);
      const byCell = "verdict" in wanted || "stage" in wanted || "reached" in wanted || words.length > 0;
      const reached = Number(wanted.reached || 0);
      let tasks = 0;
      let attempts = 0;
      const seen = new Set();
      for (const one of rows) {
        const fits =
          (!wanted.level || one.level === wanted.level) &&
          (!wanted.tag || one.tags.includes(wanted.tag)) &&
          one.seconds >= Number(wanted.seconds || 0) &&
          one.dollars >= Number(wanted.dollars || 0);
        let any = 0;
        for (const cell of one.cells) {
          const inside =
            fits &&
            (!wanted.verdict || cell.verdict === wanted.verdict) &&
            (!wanted.stage || cell.stage === wanted.stage) &&
            cell.reached >= reached &&
            words.every((word) => one.own.includes(word) || cell.text.includes(word));
          any += inside;
          if (inside === cell.out) {
            cell.out = !inside;
            cell.cell.classList.toggle("out", cell.out);
          }
        }
        const named = !wanted.verdict && !wanted.stage && !reached && words.every((word) => one.own.includes(word));
        const hide = !(fits && (any > 0 || named));
        if (hide !== one.hidden) {
          one.hidden = hide;
          one.row.hidden = hide;
        }
        if (!hide) {
          tasks += 1;
          attempts += any;
          seen.add(one.task);
        }
      }
      for (const row of others) row.hidden = !seen.has(row.dataset.task);
      section.classList.toggle("filtered", byCell);
      count.textContent = `${tasks} of ${rows.length} tasks, ${attempts} attempts`;
    }

    function restore() {
      if (!form.isConnected) return removeEventListener("hashchange", restore); // a live page has taken over another
      const { part: named, state } = fragment();
      if (named !== part && state.size) return;
      for (const field of form.elements) if (field.name) field.value = state.get(field.name) || "";
      apply();
      if (named === part && state.size) section.scrollIntoView();
    }
    addEventListener("hashchange", restore);
    restore();
  }

  function stateOf(form) {
    const state = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) state.set(name, value);
    return state;
  }

  // --- tabs: figures that answer one question in several ways

  function tabs(group) {
    const panels = [...group.querySelectorAll(":scope > [data-tab]")];
    const buttons = [...group.querySelectorAll(":scope > .tablist > button")];
    buttons.forEach((button, index) => {
      panels[index].setAttribute("role", "tabpanel");
      panels[index].setAttribute("aria-labelledby", button.id);
      button.addEventListener("click", () => select(index));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) select((index + step + panels.length) % panels.length, true);
      });
    });
    function select(chosen, focus = false) {
      panels.forEach((panel, index) => {
        panel.hidden = index !== chosen;
        buttons[index].setAttribute("aria-selected", String(index === chosen));
        buttons[index].tabIndex = index === chosen ? 0 : -1;
      });
      if (focus) buttons[chosen].focus();
    }
    select(0);
  }

  // --- code: coloured when it is seen

  function colour() {
    if (typeof hljs === "undefined") return;
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(target);
        if (target.textContent.length <= LONGEST_COLOURED) hljs.highlightElement(target);
      }
    });
    for (const code of document.querySelectorAll("code[class^='language-']:not([data-highlighted])")) seen.observe(code);
  }

  // --- keys

  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, [contenteditable]")) return;
    const field = [...document.querySelectorAll("input[type='search']")].find((one) => one.offsetParent !== null);
    if (field) {
      event.preventDefault();
      field.focus();
    }
  });

  const seenBefore = new WeakSet();

  function fresh(selector) {
    const found = [...document.querySelectorAll(selector)].filter((one) => !seenBefore.has(one));
    for (const one of found) seenBefore.add(one);
    return found;
  }

  /** What is on the page and was not enhanced before: all of it at first, on a live page what has come since. */
  function enhance() {
    // Links into a filtered matrix: without scripts they lead to the whole of it.
    for (const link of fresh("a[data-state]")) link.href = `${link.getAttribute("href")}?${link.dataset.state}`;
    for (const group of fresh("[data-tabs]:has(> .tablist)")) tabs(group);
    for (const form of fresh("form[data-filters]")) filterable(form);
    for (const table of document.querySelectorAll("table.data")) sortable(table);
    colour();
  }

  function start() {
    themeButton();
    addEventListener("hashchange", showSection);
    showSection();
    enhance();
    document.addEventListener("kernelforge:content", enhance);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
