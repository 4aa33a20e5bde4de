// Quantities as text and back, by edgefl's own table of units (edgefl/units.py), which stands in the page.  Numbers are in
// base units: B, FLOP, s, J, share.
"use strict";

const edgeflUnits = (() => {
  const QUANTITIES = JSON.parse(document.getElementById("units").textContent);

  // As Python rounds, a tie to the even digit.
  function fixed(number, places) {
    const text = number.toFixed(places), exact = number.toFixed(60), end = exact.indexOf(".") + 1 + places;
    return /^50*$/.test(exact.slice(end)) && Number(text.at(-1)) % 2 ? exact.slice(0, places ? end : end - 1) : text;
  }

  // In the largest unit that isn't above the value, with about three digits: Quantity.show.
  function show(value, unit, digits = 3, steps = QUANTITIES[unit].steps) {
    if (value === null || value === undefined || Number.isNaN(value)) return "-";
    if (value === Infinity) return "unlimited";
    if (value < 0) return `-${show(-value, unit, digits, steps)}`;
    let [name, factor] = (value === 0 && steps.find((step) => step[1] === 1)) || steps[0];
    for (const step of steps) if (value >= step[2] * 0.9995) [name, factor] = step;
    const number = value / factor;
    if (name === "%") return `${Number(number.toPrecision(digits))} %`;
    const whole = String(Math.floor(number + 0.5 * 10 ** (1 - digits))).length;
    const text = fixed(number, Math.max(0, digits - whole));
    return `${text.includes(".") ? text.replace(/\.?0+$/, "") : text} ${name}`.trim();
  }

  // The number of a text, with a unit or in the base unit; "unlimited" is Infinity.  Null for other texts, and for bytes
  // between 0 and 1 MiB without a unit, as in a scenario.
  function parse(text, unit) {
    const given = text.trim(), { factors, least_bare } = QUANTITIES[unit];
    if (/^(unlimited|none|null|∞)$/i.test(given)) return Infinity;
    const match = /^([+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*)$/.exec(given);
    if (!match) return null;
    const factor = Object.hasOwn(factors, match[2]) ? factors[match[2]] : undefined;
    const number = Number(match[1].replaceAll("_", ""));
    if (factor === undefined || !Number.isFinite(number)) return null;
    if (match[2] === "" && number > 0 && number < least_bare) return null;
    return factor < 1 ? number / Math.round(1 / factor) : number * factor;
  }

  // The shortest text that is read as exactly this number.
  function exact(value, unit, whole) {
    const { steps, factors, binary } = QUANTITIES[unit];
    const same = (text) => (whole ? Math.round(parse(text, unit)) : parse(text, unit)) === value;
    const decimal = ["", "k", "M", "G", "T", "P", "E"].map((prefix) => prefix + unit).filter((name) => name in factors)
      .map((name) => [name, factors[name], factors[name]]);
    for (const each of [steps, ...(binary ? [decimal] : [])]) {
      for (let digits = 3; digits <= 6; digits++) {
        const text = show(value, unit, digits, each);
        if (same(text)) return text;
      }
    }
    return unit === "share" ? `${value}` : `${value} ${unit}`.trim();
  }

  // Round amounts from `low` to `high`, for an axis: powers of 2 of bytes, 1, 2 and 5 of each decade of each unit.
  function round(unit, low, high) {
    const { steps, binary } = QUANTITIES[unit], found = [];
    if (binary) for (let at = 1; at <= high; at *= 2) found.push(at);
    else {
      const sizes = [1, ...steps.filter(([, factor]) => factor > 1).map(([, factor]) => factor)];
      for (let power = -6; power < 22; power++) {
        for (const digit of [1, 2, 5]) {
          sizes.forEach((size, i) => {
            const at = digit * 10 ** power * size, least = steps.find(([, factor]) => factor === size)?.[2];
            if ((size === 1 || at >= least) && at < (sizes[i + 1] ?? Infinity)) found.push(at);
          });
        }
      }
    }
    return [...new Set(found)].filter((at) => at >= low && at <= high).sort((a, b) => a - b);
  }

  const count = (value) => Math.round(value).toLocaleString("en-US");
  return { show, parse, exact, round, count, example: (unit) => QUANTITIES[unit].example };
})();
