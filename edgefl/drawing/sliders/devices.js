// The table of devices: which rows are shown, and the reason of the answer under the hand.
"use strict";

(() => {
  const [filter, which, found, told] = ["filter", "which", "found", "told"].map((id) => document.getElementById(id));
  const body = document.querySelector("tbody.rows"), rows = [...body.rows];
  const counts = rows.map((row) => [row.querySelectorAll("td.yes").length, row.querySelectorAll("td:not(.refused)").length]);

  // The filter stands in the address, so that a link keeps it.
  function show() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    rows.forEach((row, i) => {
      const [yes, all] = counts[i];
      const kept = which.value === "" || (which.value === "none" ? yes === 0 : yes > 0 && yes < all);
      row.hidden = !kept || !words.every((word) => row.dataset.words.includes(word));
      if (!row.hidden) n += 1;
    });
    found.textContent = n < rows.length ? `${n} of ${rows.length} rows` : "";
    const first = body.querySelector("tr:not([hidden]) td");
    body.querySelector('td[tabindex="0"]')?.setAttribute("tabindex", "-1");
    first?.setAttribute("tabindex", "0");
  }

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    filter.value = given.get("filter") ?? "";
    which.value = given.get("show") ?? "";
    if (which.selectedIndex < 0) which.value = "";
    show();
  }

  function write() {
    const words = new URLSearchParams();
    if (filter.value) words.set("filter", filter.value);
    if (which.value) words.set("show", which.value);
    location.hash = words.toString() || "all=";
  }

  function tell(cell) {
    if (!cell) return;
    const row = cell.parentElement, head = row.cells[0], at = [...row.cells].indexOf(cell) - 1;
    const choices = [...document.querySelectorAll("thead tr")].map((line) => {
      let past = 0;
      return [...line.cells].slice(1).find((each) => (past += each.colSpan) > at).textContent;
    });
    told.textContent = `${[head.textContent.trim(), ...choices].join(", ")}: ${cell.title}`;
  }

  filter.addEventListener("input", show);
  filter.addEventListener("change", write);
  which.addEventListener("change", () => {
    show();
    write();
  });
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", read);
  body.addEventListener("pointerover", (event) => tell(event.target.closest("td")));
  body.addEventListener("focusin", (event) => tell(event.target.closest("td")));
  body.addEventListener("click", (event) => event.target.closest("td")?.focus());
  body.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    const cell = event.target.closest("td");
    if (!cell || !(event.key in steps)) return;
    event.preventDefault();
    const shown = rows.filter((row) => !row.hidden), [down, right] = steps[event.key];
    const next = shown[shown.indexOf(cell.parentElement) + down]?.cells[cell.cellIndex + right];
    if (next?.tagName !== "TD") return;
    cell.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
  read();
})();
