"use strict";
// Draws the charts, in the colours that the style sheet has for light or dark, and again when that changes.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set();
  const charts = [...document.querySelectorAll("[data-figure]")];
  const touch = matchMedia("(hover: none)");

  const inColour = (value, style) => {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => inColour(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, inColour(item, style)]));
  };

  const draw = (chart) => {
    const figure = inColour(figures[chart.dataset.figure], getComputedStyle(document.documentElement));
    for (const trace of figure.data) trace.visible = !hidden.has(trace.meta);
    if (touch.matches) figure.layout.dragmode = false; // a finger on a chart scrolls the page
    return Plotly.react(chart, figure.data, figure.layout, { displayModeBar: false });
  };

  const pressed = (button, is) => button.setAttribute("aria-pressed", String(is));

  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const system = button.dataset.toggle;
      if (!hidden.delete(system)) hidden.add(system);
      pressed(button, !hidden.has(system));
      for (const chart of charts) if (figures[chart.dataset.figure].data.some((t) => t.meta === system)) draw(chart);
    });
  }

  const choices = [...document.querySelectorAll("[data-timeline]")];
  for (const button of choices) {
    button.addEventListener("click", () => {
      for (const other of choices) pressed(other, other === button);
      const chart = document.getElementById("chosen");
      chart.dataset.figure = button.dataset.timeline;
      draw(chart);
    });
  }

  const copy = document.getElementById("copy");
  copy.addEventListener("click", () => {
    const { command } = document.getElementById("command").dataset;
    const give = (event) => {
      event.clipboardData.setData("text/plain", command);
      event.preventDefault();
    };
    // A page that was opened as a file may not be allowed the clipboard of `navigator`; this works everywhere.
    document.addEventListener("copy", give, { once: true });
    copy.textContent = document.execCommand("copy") ? "Copied" : "Select it, then press Ctrl+C";
  });

  // Also when the page is printed or a column narrows, of which a window's own resizing says nothing.
  const sizes = new ResizeObserver((changed) => changed.forEach(({ target }) => Plotly.Plots.resize(target)));
  const drawAll = () => charts.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
  charts.forEach((chart) => sizes.observe(chart));
})();
