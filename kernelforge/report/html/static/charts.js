// Draws the charts of a page from the Vega-Lite specifications in it.
//
// A chart is
//   <figure class="chart" data-figure="f-NAME">
//     <script type="application/json" id="f-NAME">SPECIFICATION</script>
//     <div class="chart-plot"><svg height="ITS HEIGHT"></svg><svg class="narrow" height="THAT ON A PHONE"></svg></div>
//     <figcaption>TITLE</figcaption>
//     <button class="chart-save">Save as SVG</button>
//   </figure>
// It is drawn when it comes near the view, and again when the theme changes. Nothing is fetched and no text becomes
// code: Vega's expressions are interpreted, so that the page's policy needs no "unsafe-eval". A page that changes its
// content says so with the event "kernelforge:content" on the document.
// It never comes during a press: were it higher than its room, what is pressed would move away, and the click be lost.
"use strict";

(() => {
  const PAPER = { ink: "#1a1a1a", font: "Arial, Helvetica, sans-serif", background: "#ffffff", width: 640 };
  const NEAR = "400px"; // so that a chart is there before it is scrolled to
  const charts = new Map(); // figure element -> {spec, view}
  const waiting = new Set(); // figures that came near during a press

  /** Colours and type of a chart: everything that is no data takes the ink of the text around it. */
  function themed(ink, font, width) {
    const lines = { domainColor: ink, domainOpacity: 0.45, tickColor: ink, tickOpacity: 0.45, gridColor: ink, gridOpacity: 0.12 };
    const words = { labelColor: ink, titleColor: ink, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      aria: false, // the element around the drawing has the description
      background: "transparent",
      font,
      axis: { ...lines, ...words },
      axisY: { labelLimit: Math.round(0.42 * width) }, // names of rows leave room for the rows
      legend: { ...words, orient: "top", offset: 4, symbolOpacity: 1, columns: Math.max(Math.floor(width / 135), 1) },
      text: { color: ink, fontSize: 11 },
      style: { ink: { stroke: ink } }, // lines of data that must stand on bars and page alike
      view: { stroke: null },
    };
  }

  /** A loader that loads nothing. */
  function closed() {
    const refuse = () => Promise.reject(new Error("charts fetch nothing"));
    return { load: refuse, sanitize: refuse, http: refuse, file: refuse, options: {} };
  }

  /** A Vega view of a Vega-Lite specification. */
  function viewOf(spec, config, options) {
    const compiled = vegaLite.compile(spec, { config, logger: silent() }).spec;
    const runtime = vega.parse(compiled, null, { ast: true });
    return new vega.View(runtime, {
      expr: vegaInterpreter.expressionInterpreter,
      loader: closed(),
      logger: silent(),
      ...options,
    });
  }

  function silent() {
    const logger = vega.logger(vega.None);
    logger.error = (...message) => {
      throw message.find((one) => one instanceof Error) || new Error(message.join(" "));
    };
    return logger;
  }

  /** Where a mark leads: a page beside this one, and nowhere else. */
  function destination(item) {
    const href = item && item.datum && item.datum.href;
    if (typeof href !== "string") return null;
    const url = new URL(href, location.href);
    return url.protocol === location.protocol && url.host === location.host ? url.href : null;
  }

  /** What a mark is, as lines of text beside the pointer. */
  function tooltip(box) {
    return (_handler, event, _item, value) => {
      box.hidden = value === null || value === undefined || value === "";
      if (box.hidden) return;
      box.replaceChildren();
      const rows = typeof value === "object" ? Object.entries(value) : [["", value]];
      for (const [name, shown] of rows) {
        const row = document.createElement("div");
        row.textContent = name ? `${name}: ${shown}` : String(shown);
        box.append(row);
      }
      const left = Math.min(event.clientX + 12, document.documentElement.clientWidth - box.offsetWidth - 8);
      const below = event.clientY + 14;
      const fits = below + box.offsetHeight < window.innerHeight;
      box.style.left = `${Math.max(left, 8)}px`;
      box.style.top = `${fits ? below : event.clientY - box.offsetHeight - 10}px`;
    };
  }

  let tip = null;
  function tooltipBox() {
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "chart-tooltip";
      tip.hidden = true;
      tip.setAttribute("aria-hidden", "true"); // the table beside the chart says the same to a screen reader
      document.body.append(tip);
    }
    return tip;
  }

  async function draw(figure, { ink } = {}) {
    const chart = charts.get(figure);
    if (!chart) return; // it left the page after it had come near
    if (figure.offsetParent === null) return forget(figure, chart); // or is hidden by now
    const plot = figure.querySelector(".chart-plot");
    let view = null;
    try {
      if (typeof vega === "undefined" || typeof vegaLite === "undefined" || typeof vegaInterpreter === "undefined") {
        throw new Error("the scripts that draw it are not there");
      }
      const style = getComputedStyle(plot);
      chart.spec = chart.spec || JSON.parse(document.getElementById(figure.dataset.figure).textContent);
      if (chart.view) letGo(chart);
      plot.style.minHeight = `${plot.clientHeight}px`; // what is below does not move while this is drawn
      view = viewOf(chart.spec, themed(ink || style.color, style.fontFamily, plot.clientWidth), {
        renderer: "svg",
        container: plot,
        hover: true,
        tooltip: tooltip(tooltipBox()),
      });
      chart.view = view;
      view.addEventListener("click", (_event, item) => {
        const url = destination(item);
        if (url) location.assign(url);
      });
      await view.runAsync();
      if (chart.view !== view) return; // drawn again in the meantime
      // One picture with one description: Vega's own labels would be read out mark by mark.
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", chart.spec.description || "");
      plot.removeAttribute("aria-roledescription");
      plot.querySelector("svg").setAttribute("aria-hidden", "true");
      figure.dataset.drawn = "true";
    } catch (error) {
      if (view && chart.view !== view) return;
      chart.view = null;
      plot.removeAttribute("role");
      plot.removeAttribute("aria-label");
      plot.classList.add("chart-error");
      plot.style.minHeight = "";
      plot.textContent = `This chart could not be drawn: ${error.message}. The table has its numbers.`;
      figure.dataset.drawn = "failed";
    }
  }

  /** End the view of a chart; nothing points at its marks any more. */
  function letGo(chart) {
    chart.view.finalize();
    chart.view = null;
    if (tip) tip.hidden = true;
  }

  /** Save a chart as it would be printed: dark on white, whatever the page's theme. */
  async function save(figure) {
    const spec = { ...charts.get(figure).spec, width: PAPER.width };
    const config = { ...themed(PAPER.ink, PAPER.font, PAPER.width), background: PAPER.background };
    const view = viewOf(spec, config, { renderer: "none" });
    const url = URL.createObjectURL(new Blob([await view.toSVG()], { type: "image/svg+xml" }));
    view.finalize();
    const link = document.createElement("a");
    link.href = url;
    link.download = `${figure.dataset.figure.replace(/^f-/, "")}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000); // nothing says when a browser has read it
  }

  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        if (document.pressed) waiting.add(entry.target);
        else draw(entry.target);
      }
    },
    { rootMargin: NEAR },
  );

  document.addEventListener("kernelforge:released", () => {
    for (const figure of waiting) draw(figure);
    waiting.clear();
  });

  /** Take up the figures that are new, and let go of those that left the page. */
  function scan() {
    for (const [figure, chart] of charts) {
      if (figure.isConnected) continue;
      if (chart.view) letGo(chart);
      charts.delete(figure);
      waiting.delete(figure);
    }
    for (const figure of document.querySelectorAll("figure[data-figure]")) {
      if (charts.has(figure)) continue;
      charts.set(figure, { spec: null, view: null });
      figure.querySelector(".chart-save").addEventListener("click", () => save(figure));
      near.observe(figure);
    }
  }

  function redraw() {
    for (const [figure, chart] of charts) if (chart.view) draw(figure);
  }

  /** A chart that is not shown has no width to be drawn in: it is drawn when it is shown. */
  function forget(figure, chart) {
    if (chart.view) letGo(chart);
    delete figure.dataset.drawn;
    near.observe(figure);
  }

  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("kernelforge:content", scan);
  addEventListener("beforeprint", () => {
    for (const figure of charts.keys()) if (figure.offsetParent !== null) draw(figure, { ink: PAPER.ink });
  });
  addEventListener("afterprint", redraw);
  addEventListener("resize", () => {
    for (const [figure, chart] of charts) if (chart.view && figure.offsetParent === null) forget(figure, chart);
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", scan);
  else scan();
})();
