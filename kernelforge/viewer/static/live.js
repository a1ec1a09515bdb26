// What makes a page live: it hears of news from the viewer, fetches itself again and takes over what is new in <main>.
// Nothing that a run wrote becomes markup here: pages are made, and escaped, in one place, by the viewer.
"use strict";

(() => {
  const here = document.currentScript.src;
  const ENDED = ["finished", "stopped", "failed", "interrupted"];
  const LEAST_MS = { live: 500, page: 2000 }; // between two fetches
  const LOST = "connection lost; trying again";
  const REFUSED_MS = 5000;
  const SHARE = 10; // and so many times as long as the last one took: a large page must not keep the viewer busy
  let skew = 0; // the browser's clock minus the viewer's
  let due = 0; // timer of the next fetch
  let fetching = false;
  let failed = false; // whether the last fetch did
  let stale = false; // whether the page is older than the last news
  let fetched = 0; // when the last fetch began
  let took = 0; // and how long it took
  let events = null;
  let last = document.body.dataset.live; // number of the last news: at first, that which this page was made with
  let told = ""; // what the note says while the viewer can be reached

  // --- the note under the heading: its room is kept by the style of every live page, so that nothing moves when it comes

  const note = document.createElement("p");
  note.className = "live-note";
  note.setAttribute("role", "status");
  document.querySelector("header").append(note);

  function say(text, lost = false) {
    if (note.textContent !== text) note.textContent = text;
    note.classList.toggle("lost", lost);
  }

  // --- clocks

  function clock(milliseconds) {
    const whole = Math.max(0, Math.floor(milliseconds / 1000));
    if (whole < 60) return `${whole} s`;
    const minutes = Math.floor(whole / 60);
    const two = (value) => String(value).padStart(2, "0");
    return minutes < 60 ? `${minutes} min ${two(whole % 60)} s` : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  }

  function tick() {
    const now = Date.now() - skew;
    for (const time of document.querySelectorAll("time[data-clock]")) {
      const past = now - Date.parse(time.dateTime);
      const text = clock(time.dataset.clock === "down" ? -past : past);
      if (time.textContent !== text) time.textContent = text;
    }
    for (const bar of document.querySelectorAll("progress[data-since]")) {
      bar.value = (now - Date.parse(bar.dataset.since)) / 1000;
    }
    for (const row of document.querySelectorAll("tr[data-stalled-after]")) {
      const stalled = (now - Date.parse(row.dataset.since)) / 1000 > Number(row.dataset.stalledAfter);
      row.classList.toggle("stalled", stalled);
      row.querySelector(".stall").textContent = stalled ? "stalled" : "";
    }
  }

  function setSkew() {
    const article = document.getElementById("live");
    if (article) skew = Date.now() - Date.parse(article.dataset.now);
  }

  // --- the page itself, fetched again

  /** Fetch the page soon: not more often than it should be, one fetch at a time, and not while a reader is at work. */
  function refresh() {
    stale = true;
    if (due || fetching) return;
    const often = !failed && document.getElementById("live") !== null;
    const least = Math.max(often ? LEAST_MS.live : LEAST_MS.page, SHARE * took);
    due = setTimeout(tryNow, Math.max(0, fetched + least - Date.now()));
  }

  async function tryNow() {
    if (document.hidden || busy()) {
      due = setTimeout(tryNow, LEAST_MS.live);
      return;
    }
    due = 0;
    fetching = true;
    stale = false;
    fetched = Date.now();
    try {
      if (!(await takeOver())) stale = true;
      if (failed && note.textContent === LOST) say(told);
      failed = false;
    } catch {
      say(LOST, true);
      failed = stale = true;
    }
    took = Date.now() - fetched;
    fetching = false;
    if (stale) refresh();
  }

  // --- what a reader is in the middle of: what is under a press, a choice, a selection or a word must stay

  let composing = false;
  addEventListener("compositionstart", () => (composing = true));
  addEventListener("compositionend", () => (composing = false));

  function busy() {
    const main = document.querySelector("main");
    const selection = getSelection();
    if (!selection.isCollapsed && main.contains(selection.anchorNode)) return true;
    const choosing = CSS.supports("selector(:open)") && main.querySelector("select:open");
    return document.pressed || composing || Boolean(choosing);
  }

  /** Whether the page is as it was when this began, or will never be again. */
  async function takeOver() {
    const answer = await fetch(location.href.split("#")[0], { cache: "no-store" });
    if (answer.status === 503) throw new Error("it cannot read the results now");
    if (!answer.ok) {
      say(answer.status === 401 ? "the viewer was started anew: open its new address" : "this page has gone", true);
      return true;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (busy()) return false; // by now
    const [old, fresh] = [document.querySelector("main"), page.querySelector("main")];
    if (!fresh) return true;
    const kept = keep(old);
    old.replaceChildren(...[...fresh.childNodes].map((node) => document.importNode(node, true)));
    document.title = page.title;
    setSkew();
    tick();
    document.dispatchEvent(new Event("kernelforge:content"));
    kept();
    listen();
    return true;
  }

  /** What a reader has done to the page, and how to do it again to the one that replaces it. */
  function keep(main) {
    const [left, top] = [scrollX, scrollY];
    const open = new Map(named(main).map(([name, one]) => [name, one.open]));
    const regions = [...main.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const fields = new Map([...main.querySelectorAll("input, select")].map((one, index) => [one.name || one.id || index, one.value]));
    const tabs = [...main.querySelectorAll("[role='tab'][aria-selected='true']")].map((one) => one.id);
    const orders = [...main.querySelectorAll("table")].map((one) => {
      const sorted = one.querySelector("[aria-sort]");
      return sorted && [sorted.cellIndex, sorted.getAttribute("aria-sort")];
    });
    const active = main.contains(document.activeElement) ? document.activeElement : null;
    const focus = active && pathTo(main, active);
    const caret = active && active.type === "search" ? [active.selectionStart, active.selectionEnd] : null;
    return () => {
      for (const [name, one] of named(main)) {
        const was = open.get(name);
        if (was !== undefined) one.open = was;
      }
      for (const id of tabs) document.getElementById(id)?.click();
      [...main.querySelectorAll("table")].forEach((one, index) => {
        const [column, order] = orders[index] || [];
        const heading = column === undefined ? null : one.tHead.rows[0].cells[column];
        // The first click sorts one way, the second the other.
        for (let click = 0; heading && click < 2 && heading.getAttribute("aria-sort") !== order; click += 1) heading.querySelector("button")?.click();
      });
      [...main.querySelectorAll("input, select")].forEach((one, index) => {
        const was = fields.get(one.name || one.id || index);
        if (was === undefined || was === one.value) return;
        one.value = was;
        one.dispatchEvent(new Event("input", { bubbles: true }));
      });
      [...main.querySelectorAll(".scroll")].forEach((one, index) => {
        if (regions[index]) [one.scrollLeft, one.scrollTop] = regions[index];
      });
      const again = focus && find(main, focus);
      if (again) again.focus({ preventScroll: true });
      if (again && caret) again.setSelectionRange(...caret);
      scrollTo({ left, top, behavior: "instant" });
    };
  }

  /** What unfolds, with a name that stays when something else comes or goes: where it is, and its summary. */
  function named(main) {
    const times = new Map();
    return [...main.querySelectorAll("details")].map((one) => {
      if (one.id) return [`#${one.id}`, one];
      const summary = one.querySelector("summary");
      const name = `${one.parentElement.closest("[id]").id} ${summary ? summary.textContent : ""}`;
      times.set(name, (times.get(name) || 0) + 1);
      return [`${name} ${times.get(name)}`, one];
    });
  }

  function pathTo(main, element) {
    if (element.id) return [element.id];
    if (element.tagName === "A" && element.hasAttribute("href")) return ["", element.getAttribute("href")];
    const steps = [];
    for (let at = element; at !== main; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
    return steps;
  }

  function find(main, path) {
    if (typeof path[0] === "string" && path[0]) return document.getElementById(path[0]);
    if (path[0] === "") return [...main.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === path[1]);
    return path.reduce((at, index) => at && at.children[index], main);
  }

  // --- news

  // A page that nobody sees does not listen: a browser has few connections for all pages of one address.
  function listen() {
    if (events || document.hidden) return;
    const address = new URL("../events", here);
    const article = document.getElementById("live");
    if (article && article.dataset.run) address.searchParams.set("run", article.dataset.run);
    address.searchParams.set("last", last);
    events = new EventSource(address);
    events.addEventListener("progress", (event) => {
      const { progress } = JSON.parse(event.data);
      const own = document.getElementById("live");
      told = ENDED.includes(progress.state) ? `the run has ended: ${progress.state}` : own ? "" : `live: ${progress.run} ${progress.state}`;
      say(told);
      if (own) refresh();
    });
    events.addEventListener("changed", (event) => {
      last = event.lastEventId;
      refresh();
    });
    events.addEventListener("error", () => {
      say(LOST, true);
      if (!events || events.readyState !== EventSource.CLOSED) return; // the browser tries again
      leave();
      setTimeout(refresh, REFUSED_MS); // which finds out why
    });
  }

  function leave() {
    if (events) events.close();
    events = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return leave();
    tick();
    listen();
  });
  addEventListener("pagehide", leave);
  // A page that comes back from the browser's memory has stood still.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  setSkew();
  setInterval(tick, 1000);
  listen();
})();
