// Marks of clients: a shape and a colour for each verdict, stamped into the pixels of the picture.
"use strict";

const edgeflMarks = (() => {
  const SIGNS = ["●", "▲", "■", "◆", "▼", "✚", "★"];
  const OUTLINES = [
    null,
    [[0, -1.15], [1.1, 0.85], [-1.1, 0.85]],
    [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    [[0, -1.25], [1.1, 0], [0, 1.25], [-1.1, 0]],
    [[0, 1.15], [1.1, -0.85], [-1.1, -0.85]],
    [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]],
    Array.from({ length: 10 }, (_, i) => [(i % 2 ? 0.55 : 1.3) * Math.sin(Math.PI * i / 5), -(i % 2 ? 0.55 : 1.3) * Math.cos(Math.PI * i / 5)]),
  ];

  // The verdicts of a record's clients: 0 fits, then one for each budget: {words, sign, colour, shape}.
  function verdicts(record, palette) {
    const refused = record.budgets.map((budget, b) => ({
      name: budget.name, words: `${budget.noun} leaves out`, colour: palette.budgets[budget.name],
      shape: Math.min(b + 1, OUTLINES.length - 1),
    }));
    return [{ name: "fits", words: "can train", colour: palette.fits, shape: 0 }, ...refused]
      .map((verdict) => ({ ...verdict, sign: SIGNS[verdict.shape] }));
  }

  function outline(context, shape, x, y, radius) {
    context.beginPath();
    if (!OUTLINES[shape]) context.arc(x, y, radius, 0, 2 * Math.PI);
    else OUTLINES[shape].forEach(([dx, dy], i) => context[i ? "lineTo" : "moveTo"](x + dx * radius, y + dy * radius));
    context.closePath();
  }

  // A mark's pixels that aren't empty: {reach, places, colours}: [x, y] from its middle and [red, green, blue, alpha].
  // Clients that fit are full, others are outlines; where there are many they are less opaque.
  function stamp(shape, colour, radius, opacity) {
    const reach = Math.ceil(radius * 1.3 + 1), size = 2 * reach + 1, canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [size, size];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    outline(context, shape, size / 2, size / 2, radius);
    context.fillStyle = context.strokeStyle = colour;
    context.globalAlpha = (shape ? 0.25 : 0.8) * opacity;
    context.fill();
    context.globalAlpha = opacity;
    context.lineWidth = Math.max(1, radius / 3.2);
    context.stroke();
    const { data } = context.getImageData(0, 0, size, size), places = [], colours = [];
    for (let i = 0; i < size * size; i++) {
      if (data[4 * i + 3] < 16) continue;
      places.push([i % size - reach, Math.floor(i / size) - reach]);
      colours.push(...data.subarray(4 * i, 4 * i + 4));
    }
    return { reach, places, colours: Uint8Array.from(colours) };
  }

  // Puts marks over an opaque picture: a function of a stamp, x and y, the place of its middle.
  function putter({ width, height, data }) {
    const offsets = new Map();
    return (stamp, x, y) => {
      if (!offsets.has(stamp)) offsets.set(stamp, Int32Array.from(stamp.places, ([dx, dy]) => 4 * (dy * width + dx)));
      const { reach, colours } = stamp, places = offsets.get(stamp);
      if (x < reach || y < reach || x >= width - reach || y >= height - reach) return;
      const middle = 4 * (y * width + x);
      for (let p = 0, c = 0; p < places.length; p++, c += 4) {
        const to = middle + places[p], alpha = colours[c + 3];
        data[to] += ((colours[c] - data[to]) * alpha) >> 8;
        data[to + 1] += ((colours[c + 1] - data[to + 1]) * alpha) >> 8;
        data[to + 2] += ((colours[c + 2] - data[to + 2]) * alpha) >> 8;
      }
    };
  }

  return { verdicts, stamp, putter };
})();
