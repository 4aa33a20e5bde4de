"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;
  const painted = (value) => {
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, painted(each)]));
    }
    return typeof value === "string" && /^#[0-9a-f]{6,8}$/.test(value) ? edgeflTheme.shade(value) : value;
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
    div.dataset.drawn = edgeflTheme.name;
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
    const next = [...document.querySelectorAll(".plot")].find((div) => div.offsetParent && div.dataset.drawn !== edgeflTheme.name);
    if (!next) {
      root.dataset.ready = edgeflTheme.name;
      return;
    }
    delete root.dataset.ready;
    draw(next).then(() => setTimeout(drawSeen, 0));
  };

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
  edgeflTheme.follow(drawSeen);
})();
