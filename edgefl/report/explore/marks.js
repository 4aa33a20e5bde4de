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
      name: budget.name, words: `${budget.noun} leaves out`, colour: palette.budgets[budget.name] ?? palette.other,
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

  // A mark's pixels: {size, data}, RGBA; less opaque where there are many.  Clients that fit are full, others are outlines.
  function stamp(shape, colour, radius, opacity) {
    const size = 2 * Math.ceil(radius * 1.3 + 1.5) + 1, canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [size, size];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    outline(context, shape, size / 2, size / 2, radius);
    context.fillStyle = context.strokeStyle = colour;
    context.globalAlpha = (shape ? 0.25 : 0.8) * opacity;
    context.fill();
    context.globalAlpha = opacity;
    context.lineWidth = Math.max(1, radius / 3.2);
    context.stroke();
    return { size, data: context.getImageData(0, 0, size, size).data };
  }

  // Puts a stamp over an opaque picture, its middle at x, y.
  function put(image, { size, data }, x, y) {
    const { width, height, data: onto } = image;
    const left = Math.round(x) - (size >> 1), top = Math.round(y) - (size >> 1);
    if (left < 0 || top < 0 || left + size > width || top + size > height) return;
    for (let row = 0; row < size; row++) {
      let from = row * size * 4, to = ((top + row) * width + left) * 4;
      for (let column = 0; column < size; column++, from += 4, to += 4) {
        const alpha = data[from + 3];
        if (!alpha) continue;
        onto[to] += (data[from] - onto[to]) * alpha / 255;
        onto[to + 1] += (data[from + 1] - onto[to + 1]) * alpha / 255;
        onto[to + 2] += (data[from + 2] - onto[to + 2]) * alpha / 255;
      }
    }
  }

  return { verdicts, stamp, put, outline };
})();
