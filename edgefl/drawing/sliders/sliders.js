// Budgets, the share of the device and the deadline: a slider and a field for each.
// A slider's left end is what the scenario has, its right end no limit; between them the scale is logarithmic, a share's linear.
"use strict";

const edgeflSliders = (() => {
  const { make } = edgeflParts;
  const { show, parse, exact, example } = edgeflUnits;
  const PLACES = 1000;

  // A limit that can be moved: {name, title, unit, whole, low, high, most}; `most` is the value at the right end.
  function limits(record) {
    const named = Object.fromEntries(record.budgets.map((budget) => [budget.name, budget]));
    const wide = (budget) => ({ low: budget.least > 0 ? budget.least / 2 : budget.most / 1e4, high: budget.most * 2, most: Infinity });
    const of = (budget, title, name = budget.name) => ({ name, title, unit: budget.unit, whole: budget.whole, ...wide(budget) });
    const capital = (word) => word[0].toUpperCase() + word.slice(1);
    const { memory, seconds, joules, ...others } = named;
    const main = [
      of(memory, "Memory"),
      { name: "share", title: "Memory as a share of the device", unit: "share", whole: false, low: 0, high: 1, most: 1 },
      { ...of(seconds, "Deadline of a round"), name: "deadline" },
    ];
    const more = [seconds, joules, ...Object.values(others)].map((budget) => of(budget, `${capital(budget.noun)} of a round`));
    const rounds = Math.max(...record.cells.flatMap(({ priced }) => (priced ? priced.turns.map((turn) => turn.rounds) : [1])));
    for (const [name, [budget, lasts]] of Object.entries(edgeflVerdicts.CAPS)) {
      if (record.fleets.some((fleet) => name in fleet.caps)) {
        const title = `${capital(named[budget].noun)} ${lasts === "day" ? "of a day" : "of all rounds"}`;
        more.push({ ...of(named[budget], title, name), high: named[budget].most * 2 * rounds });
      }
    }
    return [main, more.filter((limit) => limit.high > 0)];
  }

  class Slider {
    // `moved(name, value, done)`: value undefined is what the scenario has; `done` once the hand lets go.
    constructor(root, limit, moved) {
      this.limit = limit;
      const id = `explore-${limit.name}`;
      this.range = make("input", { type: "range", id, min: 0, max: PLACES, step: 1, value: 0 });
      this.field = make("input", { type: "text", id: `${id}-text`, "aria-label": `${limit.title}, amount with unit`, autocomplete: "off", spellcheck: false });
      this.back = make("button", { type: "button", class: "back", textContent: "reset", "aria-label": `${limit.title}: as in the scenario` });
      this.own = make("p", { class: "soft own", id: `${id}-own` });
      this.wrong = make("p", { class: "wrong", role: "alert", hidden: true });
      this.range.setAttribute("aria-describedby", this.own.id);
      const at = () => this.valueAt(Number(this.range.value));
      this.range.addEventListener("input", () => moved(limit.name, at(), false));
      this.range.addEventListener("change", () => moved(limit.name, at(), true));
      this.field.addEventListener("change", () => this.typed(moved));
      this.back.addEventListener("click", () => {
        moved(limit.name, undefined, true);
        this.range.focus();
      });
      root.append(make("div", { class: "limit", "data-limit": limit.name },
        make("label", { for: id, textContent: limit.title }), this.field, this.back, this.range, this.own, this.wrong));
    }

    typed(moved) {
      const { name, unit, whole, most } = this.limit, text = this.field.value.trim();
      const number = text === "" ? undefined : parse(text, unit);
      const fits = number === undefined || (number !== null && number > 0 && (name !== "share" || number <= most));
      this.field.setAttribute("aria-invalid", String(!fits));
      this.wrong.hidden = fits;
      this.wrong.textContent = fits ? "" : `${text} isn't understood: write for example ${example(unit)}${name === "share" ? "" : ", or unlimited"}, or nothing for the scenario's own`;
      if (fits) moved(name, number !== undefined && whole && number !== Infinity ? Math.round(number) : number, true);
    }

    // The value at a place of the slider, with few digits, so that it is read from its text exactly.
    valueAt(place) {
      const { low, high, most, unit, whole } = this.limit;
      if (place <= 0) return undefined;
      if (place >= PLACES) return most;
      const exact = low ? low * (high / low) ** ((place - 1) / (PLACES - 2)) : high * place / PLACES;
      const value = parse(show(exact, unit, 4), unit);
      return whole ? Math.round(value) : value;
    }

    placeOf(value) {
      const { low, high, most } = this.limit;
      if (value === undefined) return 0;
      if (value >= most) return PLACES;
      const place = low ? 1 + (PLACES - 2) * Math.log(value / low) / Math.log(high / low) : value / high * PLACES;
      return Math.min(PLACES - 1, Math.max(1, Math.round(place)));
    }

    show(value, own) {
      const { unit, whole } = this.limit, set = value !== undefined;
      const words = set ? exact(value, unit, whole) : "";
      if (document.activeElement !== this.range || this.placeOf(this.valueAt(Number(this.range.value))) !== this.placeOf(value)) {
        this.range.value = this.placeOf(value);
      }
      if (this.field.getAttribute("aria-invalid") !== "true" || set) this.field.value = words;
      if (set) {
        this.field.removeAttribute("aria-invalid");
        this.wrong.hidden = true;
      }
      this.field.placeholder = "as in scenario";
      this.range.setAttribute("aria-valuetext", set ? words : `as in the scenario: ${own}`);
      this.own.textContent = own;
      this.back.hidden = !set;
      this.range.closest(".limit").classList.toggle("set", set);
    }
  }

  // What the scenario has of each limit, in words, from the fleet of a cell.
  function ownWords(ex, cell) {
    const words = { share: "memory as owners grant it", deadline: cell.given.deadline === null ? "the scenario has none" : `the scenario has ${show(cell.given.deadline, "s")}` };
    const range = (values, unit) => {
      let [least, most] = [Infinity, 0];
      for (const value of values) [least, most] = [Math.min(least, value), Math.max(most, value)];
      return least === Infinity ? "" : least === most ? show(least, unit) : `${show(least, unit)} to ${show(most, unit)}`;
    };
    const granted = (values, unit) => (range(values, unit) ? `owners grant ${range(values, unit)}` : "owners set no limit");
    const named = Object.fromEntries(ex.record.budgets.map((budget) => [budget.name, budget]));
    for (const budget of ex.record.budgets) {
      if (cell.fleet.granted[budget.name]) words[budget.name] = granted(cell.fleet.granted[budget.name], budget.unit);
    }
    const { within_device: within, devices } = cell.fleet.given;
    if (within) words.memory += `; devices have ${range(devices.map((device) => device.available_memory_bytes), "B")}`;
    for (const [name, amounts] of Object.entries(cell.fleet.caps)) words[name] = granted(amounts, named[edgeflVerdicts.CAPS[name][0]].unit);
    return words;
  }

  class Sliders {
    constructor(main, more, ex, moved) {
      const [first, rest] = limits(ex.record);
      this.ex = ex;
      this.more = more.closest("details");
      this.sliders = [...first.map((limit) => new Slider(main, limit, moved)), ...rest.map((limit) => new Slider(more, limit, moved))];
      this.hidden = new Set(rest.map((limit) => limit.name));
      this.words = new Map();
      const fleet = ex.record.fleets[0];
      this.more.open = rest.some(({ name }) => fleet.granted[name] && ex.column(fleet.granted[name]).some((value) => value < Infinity));
    }

    show({ cell, set }) {
      const priced = this.ex.cell(cell);
      if (priced && !this.words.has(cell)) this.words.set(cell, ownWords(this.ex, priced));
      const words = this.words.get(cell) ?? {};
      for (const slider of this.sliders) slider.show(set[slider.limit.name], words[slider.limit.name] ?? "");
      if (Object.keys(set).some((name) => this.hidden.has(name))) this.more.open = true;
    }
  }

  return { Sliders };
})();
