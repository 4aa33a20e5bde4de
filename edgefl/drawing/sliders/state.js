// What is chosen and set, and the same as the address's part after "#":
// the choices that differ from the first cell by their axis' path, what is set by its name, and what is looked at.
"use strict";

const edgeflState = (() => {
  // What is looked at: the stage, the axes of the picture, the kind; "" is what the page itself takes.
  const LOOKS = { stage: "show.stage", across: "show.across", up: "show.up", kind: "show.kind" };
  const OTHERS = ["share", "deadline", ...Object.keys(edgeflVerdicts.CAPS)];

  const first = (record) => ({ cell: record.start, set: {}, look: { stage: "", across: "", up: "", kind: "" } });

  // The cell with these choices, an index for each axis.
  const cellAt = (record, at) => at.reduce((index, choice, a) => index * record.axes[a].choices.length + choice, 0);

  function write(record, { cell, set, look }) {
    const words = new URLSearchParams();
    const at = record.cells[cell].at, start = record.cells[record.start].at;
    record.axes.forEach((axis, a) => {
      if (at[a] !== start[a]) words.set(axis.path, axis.choices[at[a]].label);
    });
    for (const [name, value] of Object.entries(set)) words.set(name, value === Infinity ? "unlimited" : String(value));
    for (const [name, key] of Object.entries(LOOKS)) if (look[name]) words.set(key, look[name]);
    return words.toString();
  }

  // The state of an address, and what of it this page hasn't: [state, [words]].
  function read(record, text) {
    const state = first(record), unknown = [];
    const at = [...record.cells[record.start].at];
    const named = new Set([...record.budgets.map((budget) => budget.name), ...OTHERS]);
    for (const [key, value] of new URLSearchParams(text)) {
      const a = record.axes.findIndex((axis) => axis.path === key);
      const choice = a < 0 ? -1 : record.axes[a].choices.findIndex((each) => each.label === value);
      const look = Object.keys(LOOKS).find((name) => LOOKS[name] === key);
      const number = value === "unlimited" ? Infinity : Number(value);
      if (choice >= 0) at[a] = choice;
      else if (look) state.look[look] = value;
      else if (named.has(key) && value.trim() && number >= 0 && !(key === "share" && number > 1)) state.set[key] = number;
      else unknown.push(`${key}=${value}`);
    }
    state.cell = cellAt(record, at);
    return [state, unknown];
  }

  return { first, read, write, cellAt };
})();
