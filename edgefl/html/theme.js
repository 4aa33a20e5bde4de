// Light or dark: as the system has it until the page's button is pressed.  For the pages of shell.html.
"use strict";
const edgeflTheme = (() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const told = [];
  let name = "light";

  // A colour of the light page on the dark one: mixed with white until it is as bright as can be read there.
  const bright = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  const shade = (colour) => {
    if (name !== "dark" || typeof colour !== "string") return colour;
    let parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    if (Math.max(...parts) - Math.min(...parts) < 8 && bright(parts) < 0.2) parts = parts.map((each) => 255 - each);
    while (bright(parts) < 0.5) parts = parts.map((each) => each + (255 - each) * 0.1);
    return `#${parts.map((each) => Math.round(each).toString(16).padStart(2, "0")).join("")}${colour.slice(7)}`;
  };

  const set = (chosen) => {
    name = chosen;
    root.dataset.theme = chosen;
    button.textContent = chosen === "dark" ? "Light page" : "Dark page";
    for (const mark of document.querySelectorAll(".mark")) mark.style.color = shade(mark.dataset.colour);
    for (const each of told) each(chosen);
  };
  button.hidden = false;
  button.addEventListener("click", () => set(name === "dark" ? "light" : "dark"));
  system.addEventListener("change", (event) => set(event.matches ? "dark" : "light"));
  set(system.matches ? "dark" : "light");

  return {
    shade,
    get name() {
      return name;
    },
    // Calls `each` with the theme's name now and whenever it changes.
    follow(each) {
      told.push(each);
      each(name);
    },
  };
})();
