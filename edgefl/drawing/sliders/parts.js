// Small helpers of the page's parts.
"use strict";

const edgeflParts = (() => {
  // An element: make("td", { class: "number", textContent: "3" }, child, ...).
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element && name !== "list") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  // The rows of a table anew: each row is a list of texts or elements; the first stands for the row.
  function fill(table, titles, rows) {
    const cells = (row, tag) => row.map((cell, i) => {
      const at = make(tag === "td" && i === 0 ? "th" : tag, { class: titles[i].number ? "number" : "" });
      if (tag === "th") at.scope = "col";
      else if (i === 0) at.scope = "row";
      at.append(cell);
      return at;
    });
    table.tHead.replaceChildren(make("tr", {}, ...cells(titles.map((title) => title.text), "th")));
    table.tBodies[0].replaceChildren(...rows.map((row) => make("tr", {}, ...cells(row, "td"))));
  }

  // Calls `act` at most once a frame, however often it is asked for.
  function oncePerFrame(act) {
    let waiting = false;
    return () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        act();
      });
    };
  }

  // Copies a text; the button says so for a while.
  async function copy(button, text) {
    const words = button.dataset.words ?? button.textContent;
    button.dataset.words = words;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch (error) {
      if (!(error instanceof DOMException || error instanceof TypeError)) throw error;
      button.textContent = "not allowed here: select the text";
    }
    setTimeout(() => {
      button.textContent = words;
    }, 2000);
  }

  const listed = (names) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join(""));
  const plural = (n, noun) => `${edgeflUnits.count(n)} ${noun}${n === 1 ? "" : "s"}`;
  return { make, fill, oncePerFrame, copy, listed, plural };
})();
