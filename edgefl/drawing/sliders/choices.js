// The choices that were priced, as groups of radio buttons: one that can't run is greyed, with its reason.
"use strict";

const edgeflChoices = (() => {
  const { make } = edgeflParts;

  class Choices {
    // `titled` has the axes in words; `chose(a, index)` is called when another choice of axis `a` is taken.
    constructor(root, record, titled, chose) {
      this.record = record;
      this.titled = titled;
      this.groups = record.axes.map((axis, a) => {
        const reasons = make("ul", { class: "reasons soft", id: `explore-reasons-${a}` });
        const inputs = axis.choices.map((choice, i) => {
          const input = make("input", { type: "radio", name: `explore-axis-${a}`, value: String(i) });
          input.addEventListener("change", () => chose(a, i));
          return input;
        });
        const chips = axis.choices.map((choice, i) => {
          const own = i === axis.own ? make("small", { textContent: "scenario" }) : "";
          return make("label", { class: "chip", title: `${axis.path}: ${choice.text}` }, inputs[i],
            make("span", {}, titled[a].choices[i], own));
        });
        const legend = make("legend", { textContent: titled[a].title, title: axis.path });
        root.append(make("fieldset", { "aria-describedby": reasons.id }, legend, make("div", { class: "chips" }, ...chips), reasons));
        return { inputs, chips, reasons };
      });
    }

    show({ cell }) {
      const { record } = this, at = record.cells[cell].at;
      this.groups.forEach(({ inputs, chips, reasons }, a) => {
        const told = new Map();
        inputs.forEach((input, i) => {
          const { refused } = record.cells[edgeflState.cellAt(record, at.map((own, b) => (b === a ? i : own)))];
          input.checked = i === at[a];
          input.disabled = Boolean(refused) && i !== at[a];
          chips[i].classList.toggle("refused", Boolean(refused));
          if (refused) told.set(refused, [...(told.get(refused) ?? []), this.titled[a].choices[i]]);
        });
        const lines = [...told].map(([reason, names]) => make("li", { textContent: `${edgeflParts.listed(names)}: ${reason}` }));
        reasons.replaceChildren(...lines);
        reasons.hidden = !lines.length;
      });
    }
  }

  return { Choices };
})();
