// Quantities as text and back, as edgefl/units.py writes and reads them.  Numbers are in base units: B, FLOP, s, J, share.
"use strict";

const edgeflUnits = (() => {
  const decimal = (unit) => ["", "k", "M", "G", "T", "P", "E"].map((prefix, i) => [1000 ** i, prefix + unit]);
  const STEPS = {
    B: ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].map((name, i) => [1024 ** i, name]),
    FLOP: decimal("FLOP"),
    s: [[1e-6, "us"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]],
    J: [[1e-3, "mJ"], ...decimal("J")],
    share: [[0.01, "%"]],
  };
  const ALSO = {
    B: { bytes: 1, KB: 1e3, ...Object.fromEntries(decimal("B").map(([factor, name]) => [name, factor])) },
    FLOP: { FLOPs: 1 }, share: { "": 1 },
    s: { µs: 1e-6, sec: 1, second: 1, seconds: 1, minute: 60, minutes: 60, hour: 3600, hours: 3600, day: 86400, days: 86400 },
    J: { Wh: 3600, kWh: 3.6e6 },
  };
  const EXAMPLES = { B: "48 MiB", FLOP: "2 TFLOP", s: "10 min", J: "2 kJ", share: "40 %" };
  const stepsOf = (unit) => STEPS[unit] ?? [[1, unit]];

  // In the largest unit that isn't above the value, with about three digits; a second's larger units begin at two of them.
  function show(value, unit, digits = 3, steps = stepsOf(unit)) {
    if (value === null || value === undefined || Number.isNaN(value)) return "-";
    if (value === Infinity) return "unlimited";
    if (value < 0) return `-${show(-value, unit, digits, steps)}`;
    if (unit === "share") return `${Number((value * 100).toPrecision(digits))} %`;
    if (value === 0) return `0 ${unit}`.trim();
    let [factor, name] = steps[0];
    for (const [each, called] of steps) {
      const from = unit === "s" && each > 1 ? 2 * each : each;
      if (value >= from * 0.9995) [factor, name] = [each, called];
    }
    const number = value / factor, whole = String(Math.floor(number + 0.5 * 10 ** (1 - digits))).length;
    const text = number.toFixed(Math.max(0, digits - whole));
    return `${text.includes(".") ? text.replace(/\.?0+$/, "") : text} ${name}`.trim();
  }

  // The number of a text, with a unit or in the base unit; "unlimited" is Infinity.  Null for other texts, and for bytes
  // between 0 and 1 MiB without a unit, as in a scenario.
  function parse(text, unit) {
    const given = text.trim();
    if (/^(unlimited|none|null|∞)$/i.test(given)) return Infinity;
    const match = /^([+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*)$/.exec(given);
    if (!match) return null;
    const factors = { "": 1, [unit]: 1, ...Object.fromEntries(stepsOf(unit).map(([factor, name]) => [name, factor])), ...ALSO[unit] };
    const factor = Object.hasOwn(factors, match[2]) ? factors[match[2]] : undefined;
    const number = Number(match[1].replaceAll("_", ""));
    if (factor === undefined || !Number.isFinite(number)) return null;
    if (unit === "B" && match[2] === "" && number > 0 && number < 2 ** 20) return null;
    return factor < 1 ? number / Math.round(1 / factor) : number * factor;
  }

  // The shortest text that is read as exactly this number.
  function exact(value, unit, whole) {
    const same = (text) => (whole ? Math.round(parse(text, unit)) : parse(text, unit)) === value;
    for (const steps of [stepsOf(unit), ...(unit === "B" ? [decimal("B")] : [])]) {
      for (let digits = 3; digits <= 6; digits++) {
        const text = show(value, unit, digits, steps);
        if (same(text)) return text;
      }
    }
    return unit === "share" ? `${value}` : `${value} ${unit}`.trim();
  }

  const count = (value) => Math.round(value).toLocaleString("en-US");
  return { show, parse, exact, count, example: (unit) => EXAMPLES[unit] ?? `12 ${unit}`.trim() };
})();
