// Memory by part of each kind's largest client, beside what clients of the kind may use.
"use strict";

const edgeflMemory = (() => {
  const { make, fill } = edgeflParts;
  const { show } = edgeflUnits;
  const MOST_ROWS = 18;

  // A line for each stage, offer and kind: {stage, label, parts, peak, budgets: [least, most]}.
  function lines(judged) {
    const { cell } = judged, { kinds } = cell.fleet.given, found = [], granted = budgets(judged);
    for (const stage of judged.stages) {
      for (const index of cell.turns[judged.turns.indexOf(stage.turns[0])].offers) {
        const { given } = cell.offers[index];
        for (const { kind, batch, parts } of given.peaks) {
          const words = [kinds[kind], given.part, batch ? `batch ${batch}` : ""].filter(Boolean).join(", ");
          found.push({ stage, kind: kinds[kind], label: words, parts, peak: Object.values(parts).reduce((a, b) => a + b, 0), budgets: granted[kind] });
        }
      }
    }
    return found;
  }

  // Least and most memory that clients of each kind may use.
  function budgets({ cell: { fleet }, allowed: { memory } }) {
    const ends = fleet.given.kinds.map(() => [Infinity, 0]);
    for (let i = 0; i < memory.length; i++) {
      const of = ends[fleet.kind[i]];
      if (memory[i] < of[0]) of[0] = memory[i];
      if (memory[i] > of[1]) of[1] = memory[i];
    }
    return ends;
  }

  function range([least, most]) {
    if (least === Infinity) return "unlimited";
    return least === most ? show(least, "B") : `${show(least, "B")} to ${show(most, "B")}`;
  }

  class Memory {
    constructor(root, record, palette) {
      this.palette = palette;
      this.rows = root.querySelector(".bars");
      this.legend = root.querySelector(".legend");
      this.table = root.querySelector("table");
      this.note = root.querySelector("[data-note]");
      this.most = record.budgets.find((budget) => budget.name === "memory").most * 1.08;
    }

    show(judged, stage, kind) {
      const all = lines(judged).filter((line) => !kind || line.kind === kind);
      const several = judged.stages.length > 1, some = all.length > MOST_ROWS ? all.filter((line) => line.stage === stage) : all;
      const names = Object.keys(this.palette.parts).filter((name) => all.some((line) => line.parts[name]));
      const others = [...new Set(all.flatMap((line) => Object.keys(line.parts)))].filter((name) => !(name in this.palette.parts));
      const parts = [...names, ...others];
      this.legend.replaceChildren(...parts.map((name) => make("li", {}, make("span", { class: "key" }, this.swatch(name), name))));
      let last = null;
      const rows = [];
      for (const line of some) {
        if (several && line.stage !== last) rows.push(make("h4", { textContent: `stage ${line.stage.stage}${line.stage === judged.hardest ? " (the hardest)" : ""}` }));
        last = line.stage;
        rows.push(this.bar(line, parts));
      }
      this.rows.replaceChildren(...rows);
      this.note.textContent = some.length < all.length ? `Stage ${stage.stage} is shown; the table has all.` : "";
      const titles = [...(several ? [{ text: "stage" }] : []), { text: "client" }, { text: "peak", number: true }, { text: "may use", number: true }, ...parts.map((text) => ({ text, number: true }))];
      fill(this.table, titles, all.map((line) => [...(several ? [String(line.stage.stage)] : []), line.label, show(line.peak, "B"), range(line.budgets), ...parts.map((name) => show(line.parts[name] ?? 0, "B"))]));
    }

    swatch(name) {
      const colour = this.palette.parts[name] ?? this.palette.other;
      return make("i", { class: "mark", "aria-hidden": "true", textContent: "■", style: `color:${edgeflTheme.shade(colour)}` });
    }

    bar({ label, parts, peak, budgets }, names) {
      const share = (value) => `${Math.min(value / this.most, 1) * 100}%`;
      const pieces = names.filter((name) => parts[name]).map((name) => make("i", {
        title: `${name} ${show(parts[name], "B")}`,
        style: `width:${share(parts[name])};background:${edgeflTheme.shade(this.palette.parts[name] ?? this.palette.other)}`,
      }));
      const marks = [], [least, most] = budgets;
      if (least < this.most && most > least) marks.push(make("b", { class: "range", style: `left:${share(least)};right:calc(100% - ${share(most)})` }));
      if (least < this.most) marks.push(make("b", { class: "limit", style: `left:${share(least)}` }));
      const out = least > this.most ? make("span", { class: "soft", textContent: "→" }) : "";
      return make("div", { class: "memory" },
        make("span", {}, `${label} `, make("small", { class: "soft", textContent: `${show(peak, "B")}, may use ${range(budgets)}` })),
        make("div", { class: "bar", "aria-hidden": "true" }, ...pieces, ...marks, out));
    }
  }

  return { Memory };
})();
