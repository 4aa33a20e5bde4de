"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let theme;

  // A colour of the light page on the dark one: mixed with white until it is as bright as can be read there.
  const bright = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  const shade = (colour) => {
    if (theme !== "dark" || typeof colour !== "string") return colour;
    let parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    if (Math.max(...parts) - Math.min(...parts) < 8 && bright(parts) < 0.2) parts = parts.map((each) => 255 - each);
    while (bright(parts) < 0.5) parts = parts.map((each) => each + (255 - each) * 0.1);
    return `#${parts.map((each) => Math.round(each).toString(16).padStart(2, "0")).join("")}${colour.slice(7)}`;
  };
  const painted = (value) => {
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, painted(each)]));
    }
    return typeof value === "string" && /^#[0-9a-f]{6,8}$/.test(value) ? shade(value) : value;
  };

  const draw = (div) => {
    const plot = plots[div.dataset.plot];
    const style = getComputedStyle(root);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
    const layout = painted(plot.layout);
    for (const name of ["xaxis", "yaxis"]) layout[name] = { ...axis, ...layout[name] };
    if (layout.height) div.style.height = `${layout.height}px`;
    div.dataset.hidden = div.dataset.hidden || "[]";
    const hidden = JSON.parse(div.dataset.hidden);
    const data = painted(plot.data).map((each) => ({ ...each, visible: !hidden.includes(each.name) }));
    div.dataset.drawn = theme;
    return Plotly.react(div, data, {
      ...layout, showlegend: false, margin: { l: 10, r: 12, t: 14, b: 10 }, font: { color: ink, size: 12 },
      modebar: { bgcolor: "rgba(0,0,0,0)" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", bargap: 0.25, hovermode: layout.hovermode || "closest",
      dragmode: window.matchMedia("(pointer: coarse)").matches ? false : "zoom",
      hoverlabel: { bgcolor: style.getPropertyValue("--card").trim(), font: { color: ink } },
    }, {
      responsive: true, displaylogo: false,
      displayModeBar: window.matchMedia("(hover: hover)").matches ? "hover" : false,
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    });
  };

  // Only what can be seen is drawn, one figure at a time, so that the page can be scrolled meanwhile.
  const drawSeen = () => {
    const next = [...document.querySelectorAll(".plot")].find((div) => div.offsetParent && div.dataset.drawn !== theme);
    if (!next) {
      root.dataset.ready = theme;
      return;
    }
    delete root.dataset.ready;
    draw(next).then(() => setTimeout(drawSeen, 0));
  };

  const setTheme = (chosen) => {
    theme = chosen;
    root.dataset.theme = chosen;
    toggle.textContent = chosen === "dark" ? "Light page" : "Dark page";
    for (const mark of document.querySelectorAll(".mark")) mark.style.color = shade(mark.dataset.colour);
    drawSeen();
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => setTheme(theme === "dark" ? "light" : "dark"));
  system.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));

  for (const select of document.querySelectorAll("select[data-shows]")) {
    select.addEventListener("change", () => {
      for (const each of document.querySelectorAll(`[data-choice="${select.dataset.shows}"]`)) {
        each.hidden = each.id !== select.value;
      }
      drawSeen();
    });
  }
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      const figure = button.closest("figure");
      const hidden = [...figure.querySelectorAll('.legend button[aria-pressed="false"]')].map((b) => b.dataset.name);
      for (const div of figure.querySelectorAll(".plot")) {
        div.dataset.hidden = JSON.stringify(hidden);
        if (div.offsetParent) draw(div);
      }
    });
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
  setTheme(system.matches ? "dark" : "light");
})();
