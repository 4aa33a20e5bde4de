// Logarithmic axes of the picture of the fleet: what they can show, their ends and their ticks.
"use strict";

const edgeflAxes = (() => {
  const { show, round } = edgeflUnits;
  const capital = (word) => word[0].toUpperCase() + word.slice(1);

  // What every client has alike, if it is a limit; else null.
  function common(values) {
    const first = values[0];
    return first < Infinity && values.every((value) => value === first) ? first : null;
  }

  // What a turn's verdicts can be laid out by; `given` is {ex, judged, turn}.  Each has a key, a title, a unit, a place
  // for each row, the ends of its scale, and lines: {at, words, beyond}, where `beyond` is refused.
  function needed(budget) {
    return {
      key: budget.name, short: budget.name === "memory" ? "memory needed" : budget.noun,
      title: budget.name === "memory" ? "Memory needed" : `${capital(budget.noun)} of a round`, unit: budget.unit,
      places({ judged, turn }) {
        const { cell } = judged, b = judged.names.indexOf(budget.name), values = new Float64Array(cell.fleet.rows);
        for (let i = 0; i < values.length; i++) values[i] = turn.offer[i] < 0 ? NaN : cell.offers[turn.offer[i]].costs[b][cell.spot[i]];
        return values;
      },
      ends: () => [budget.least / 1.25, budget.most * 1.25],
      lines({ judged }) {
        const limit = common(judged.allowed[budget.name]);
        if (limit === null) return [];
        const deadline = budget.name === "seconds" && judged.deadline === limit;
        return [{ at: limit, words: `${deadline ? "deadline" : `${budget.noun} limit`} ${show(limit, budget.unit)}`, beyond: true, colour: budget.name }];
      },
    };
  }

  const granted = {
    key: "granted", short: "memory allowed", title: "Memory that a client may use", unit: "B",
    places: ({ judged }) => judged.allowed.memory,
    ends({ judged, turn }) {
      const { devices } = judged.cell.fleet.given, shared = "share" in judged.state.set;
      const most = shared ? devices.map((device) => device.available_memory_bytes) : judged.allowed.memory;
      let [low, high] = [Infinity, 0];
      for (const { at } of this.lines({ judged, turn })) [low, high] = [Math.min(low, at), Math.max(high, at)];
      for (const value of most) if (value > 0 && value < Infinity) [low, high] = [Math.min(low, value), Math.max(high, value)];
      return [low / 1.25, high * 1.25];
    },
    lines({ judged, turn, kind }) {
      const needs = new Map();
      for (const index of judged.cell.turns[judged.turns.indexOf(turn)].offers.slice(0, 1)) {
        for (const peak of judged.cell.offers[index].given.peaks) {
          const whole = Object.values(peak.parts).reduce((a, b) => a + b, 0);
          needs.set(peak.kind, Math.max(needs.get(peak.kind) ?? 0, whole));
        }
      }
      const { kinds } = judged.cell.fleet.given;
      return [...needs].filter(([k]) => !kind || kinds[k] === kind).map(([k, at]) => ({ at, words: `${kinds[k]} needs ${show(at, "B")}` }));
    },
  };

  const fullest = {
    key: "fullest", short: "fullest budget", title: "Fullest budget: taken of what is allowed", unit: "share",
    places: ({ turn }) => Float64Array.from(turn.near, (near, i) => (turn.offer[i] < 0 ? NaN : Math.max(1 - near, 0))),
    ends({ judged, turn }) {
      let [low, high] = [0.5, 2];
      for (let i = 0; i < turn.near.length; i++) {
        const taken = turn.offer[i] < 0 ? 1 : 1 - turn.near[i];
        if (taken > 0 && taken < Infinity) [low, high] = [Math.min(low, taken), Math.max(high, taken)];
      }
      return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
    },
    lines: () => [{ at: 1, words: "100 %: beyond it a client is left out", beyond: true, colour: "memory" }],
  };

  // All axes of a record, by key.
  function axesOf(record) {
    const costs = record.budgets.filter((budget) => budget.most > 0).map(needed);
    return Object.fromEntries([granted, ...costs, fullest].map((axis) => [axis.key, axis]));
  }

  // What goes up where nothing is chosen: what clients may use, if that differs among them; else what they need.
  const usual = (judged) => (judged.allowed.memory.every((value) => value === judged.allowed.memory[0]) ? "memory" : "granted");

  // A scale from values to pixels, `from` to `to`, and ticks with at least `gap` pixels between them.
  function scale([low, high], unit, from, to, gap) {
    const [bottom, top] = [Math.log(low), Math.log(high)], factor = (to - from) / (top - bottom);
    const at = (value) => from + (Math.log(value) - bottom) * factor;
    const all = round(unit, low, high);
    let step = 1, ticks = all;
    const tight = () => ticks.some((tick, i) => i > 0 && Math.abs(at(tick) - at(ticks[i - 1])) < gap);
    while (tight() && step < all.length) {
      step += 1;
      ticks = all.filter((_, i) => i % step === 0);
    }
    return { at, from, to, ticks: ticks.map((tick) => ({ at: at(tick), words: show(tick, unit, 3) })) };
  }

  return { axesOf, usual, scale };
})();
