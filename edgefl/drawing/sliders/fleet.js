// The picture of the fleet: a mark for each client on two logarithmic axes, with what is known of the one under the hand.
"use strict";

const edgeflFleet = (() => {
  const { scale } = edgeflAxes;
  const SPREAD = 3000;
  const CROWD = 4000;
  const MOST_HERE = 3;
  const NEAR = 16;

  class Picture {
    // `said(row or -1)` is called when another client is looked at.
    constructor(root, record, palette, said) {
      this.record = record;
      this.palette = palette;
      this.verdicts = edgeflMarks.verdicts(record, palette);
      this.axes = edgeflAxes.axesOf(record);
      [this.canvas, this.over] = root.querySelectorAll("canvas");
      this.tip = root.querySelector(".tip");
      this.said = said;
      this.at = -1;
      this.stamps = new Map();
      edgeflTheme.follow(() => this.stamps.clear());
      this.over.addEventListener("pointermove", (event) => this.look(this.nearest(event)));
      this.over.addEventListener("pointerdown", (event) => this.look(this.nearest(event)));
      this.over.addEventListener("pointerleave", () => document.activeElement === this.over || this.look(-1));
      this.over.addEventListener("blur", () => this.look(-1));
      this.over.addEventListener("keydown", (event) => this.key(event));
    }

    // Lays clients out: given is {ex, judged, turn, kind, across, up, hidden}, where hidden has verdicts that aren't shown.
    draw(given) {
      this.given = given;
      this.order = null;
      const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
      if (!width) return;
      const ratio = window.devicePixelRatio || 1, narrow = width < 520;
      for (const canvas of [this.canvas, this.over]) {
        if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
          [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
        }
      }
      const across = this.axes[given.across] ?? this.axes.seconds, up = this.axes[given.up] ?? this.axes[edgeflAxes.usual(given.judged)];
      this.frame = { left: narrow ? 58 : 72, right: width - 14, top: 14, bottom: height - 46, width, height, ratio };
      const { left, right, top, bottom } = this.frame;
      this.x = scale(across.ends(given), across.unit, left, right, narrow ? 74 : 90);
      this.y = scale(up.ends(given), up.unit, bottom, top, 30);
      this.place(across.places(given), up.places(given));
      this.paint(across, up);
      if (this.at >= 0) this.look(this.shown[this.at] ? this.at : -1);
    }

    // Pixels of each row, and which rows are shown.
    place(across, up) {
      const { judged, turn, kind, hidden } = this.given, { fleet } = judged.cell, rows = fleet.rows;
      const only = kind ? fleet.given.kinds.indexOf(kind) : -1, { left, right, top, bottom } = this.frame;
      if (!this.px || this.px.length !== rows) [this.px, this.py] = [new Float32Array(rows), new Float32Array(rows)];
      this.shown = new Uint8Array(rows);
      this.codes = new Uint8Array(rows);
      for (let i = 0; i < rows; i++) {
        if (turn.offer[i] < 0 || (only >= 0 && fleet.kind[i] !== only)) continue;
        const code = turn.eligible[i] ? 0 : turn.binding[i] + 1;
        this.codes[i] = code;
        if (hidden.has(this.verdicts[code].name)) continue;
        this.shown[i] = 1;
        this.px[i] = Math.min(right, Math.max(left, this.x.at(across[i])));
        this.py[i] = Math.min(bottom, Math.max(top, this.y.at(up[i])));
      }
      if (rows <= SPREAD) this.spread(rows);
    }

    // Those at the same place in a flat spiral about it.
    spread(rows) {
      const at = new Map(), { left, right, top, bottom } = this.frame;
      for (let i = 0; i < rows; i++) {
        if (!this.shown[i]) continue;
        const place = `${Math.round(this.px[i] / 4)},${Math.round(this.py[i] / 4)}`;
        if (!at.has(place)) at.set(place, []);
        at.get(place).push(i);
      }
      for (const here of at.values()) {
        const step = Math.min(this.radius(rows) * 1.4, 60 / Math.sqrt(here.length));
        here.forEach((i, n) => {
          const away = step * Math.sqrt(n), angle = n * 2.39996;
          this.px[i] = Math.min(right, Math.max(left, this.px[i] + 1.5 * away * Math.cos(angle)));
          this.py[i] = Math.min(bottom, Math.max(top, this.py[i] + 0.5 * away * Math.sin(angle)));
        });
      }
    }

    radius(rows) {
      return rows <= 300 ? 5.5 : rows <= 2000 ? 4 : rows <= 20000 ? 2.4 : 1.4;
    }

    stampOf(code, clients) {
      const ratio = this.frame.ratio, rows = this.shown.length;
      const grown = clients > 1 ? Math.min(12, 1.1 * Math.log2(clients)) : 0;
      const key = `${code} ${Math.round(grown * 2)} ${rows} ${ratio}`;
      if (!this.stamps.has(key)) {
        const verdict = this.verdicts[code];
        this.stamps.set(key, edgeflMarks.stamp(verdict.shape, edgeflTheme.shade(verdict.colour), (this.radius(rows) + grown) * ratio, rows > CROWD ? 0.45 : 1));
      }
      return this.stamps.get(key);
    }

    paint(across, up) {
      const context = this.canvas.getContext("2d", { willReadFrequently: true }), { width, height, left, right, top, bottom, ratio } = this.frame;
      const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
      const [ink, soft, line, card] = ["--ink", "--soft", "--line", "--card"].map(colour);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.fillStyle = card;
      context.fillRect(0, 0, width, height);
      const lines = [...across.lines(this.given).map((each) => ({ ...each, upright: true })), ...up.lines(this.given)];
      for (const each of lines) this.tint(context, each);
      context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      context.strokeStyle = line;
      context.fillStyle = soft;
      context.lineWidth = 1;
      const stroke = (...points) => {
        context.beginPath();
        points.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](Math.round(x) + 0.5, Math.round(y) + 0.5));
        context.stroke();
      };
      context.textAlign = "center";
      for (const tick of this.x.ticks) {
        stroke([tick.at, top], [tick.at, bottom]);
        context.fillText(tick.words, tick.at, bottom + 16);
      }
      context.textAlign = "right";
      for (const tick of this.y.ticks) {
        stroke([left, tick.at], [right, tick.at]);
        context.fillText(tick.words, left - 7, tick.at + 4);
      }
      this.stampAll(context);
      context.strokeStyle = context.fillStyle = ink;
      context.setLineDash([5, 4]);
      for (const each of lines) this.limit(context, each, stroke, card, ink);
      context.setLineDash([]);
      context.fillStyle = ink;
      context.textAlign = "center";
      context.fillText(`${across.title} →`, (left + right) / 2, height - 8);
      this.over.setAttribute("aria-label", `Clients by ${across.title.toLowerCase()} (across) and ${up.title.toLowerCase()} (up). Left and right keys go from client to client; the table below has them all.`);
      this.titled?.(up.title);
    }

    // The side of a limit whose clients are refused.
    tint(context, { at, beyond, upright, colour }) {
      if (!beyond) return;
      const { left, right, top, bottom } = this.frame;
      context.fillStyle = edgeflTheme.shade(this.palette.budgets[colour] ?? this.palette.other);
      context.globalAlpha = 0.07;
      const place = upright ? Math.min(right, Math.max(left, this.x.at(at))) : Math.min(bottom, Math.max(top, this.y.at(at)));
      if (upright) context.fillRect(place, top, right - place, bottom - top);
      else context.fillRect(left, top, right - left, place - top);
      context.globalAlpha = 1;
    }

    stampAll(context) {
      const { counts, rows } = this.given.judged.cell.fleet, { ratio } = this.frame, { width, height } = this.canvas;
      const image = context.getImageData(0, 0, width, height), put = edgeflMarks.putter(image);
      const here = rows > CROWD ? new Uint8Array(width * height) : null;
      this.verdicts.forEach((_, code) => {
        const single = this.stampOf(code, 1);
        here?.fill(0);
        for (let i = 0; i < rows; i++) {
          if (!this.shown[i] || this.codes[i] !== code) continue;
          const x = Math.round(this.px[i] * ratio), y = Math.round(this.py[i] * ratio);
          // more marks at one pixel than these couldn't be told apart
          if (here && here[y * width + x]++ >= MOST_HERE) continue;
          put(counts[i] > 1 ? this.stampOf(code, counts[i]) : single, x, y);
        }
      });
      context.putImageData(image, 0, 0);
    }

    limit(context, { at, words, upright }, stroke, card, ink) {
      const { left, right, top, bottom } = this.frame, place = upright ? this.x.at(at) : this.y.at(at);
      const inside = upright ? place >= left && place <= right : place >= top && place <= bottom;
      const label = (text, x, y, align) => {
        context.textAlign = align;
        context.lineWidth = 4;
        context.setLineDash([]);
        context.strokeStyle = card;
        context.strokeText(text, x, y);
        context.strokeStyle = context.fillStyle = ink;
        context.fillText(text, x, y);
        context.lineWidth = 1;
        context.setLineDash([5, 4]);
      };
      if (upright) {
        if (inside) stroke([place, top], [place, bottom]);
        const right_ = !inside ? place > right : place > (left + right) / 2;
        label(inside ? words : right_ ? `${words} →` : `← ${words}`, Math.min(right, Math.max(left, place)) + (right_ ? -6 : 6), bottom - 8, right_ ? "right" : "left");
      } else {
        if (inside) stroke([left, place], [right, place]);
        const above = place < top + 18;
        label(inside ? words : place < top ? `↑ ${words}` : `↓ ${words}`, right - 6, Math.min(bottom, Math.max(top, place)) + (above ? 14 : -5), "right");
      }
    }

    // --- the client under the hand

    nearest(event) {
      const box = this.over.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      let best = -1, least = (event.pointerType === "touch" ? 2 : 1) * NEAR ** 2;
      for (let i = 0; i < this.shown.length; i++) {
        if (!this.shown[i]) continue;
        const far = (this.px[i] - x) ** 2 + (this.py[i] - y) ** 2;
        if (far < least) [best, least] = [i, far];
      }
      return best;
    }

    key(event) {
      const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") this.look(-1);
      if (!(event.key in moves)) return;
      event.preventDefault();
      if (!this.order) {
        this.order = [];
        for (let i = 0; i < this.shown.length; i++) if (this.shown[i]) this.order.push(i);
        this.order.sort((a, b) => this.px[a] - this.px[b] || this.py[a] - this.py[b]);
      }
      const step = moves[event.key], now = this.order.indexOf(this.at);
      const next = Number.isFinite(step) ? now + step : step < 0 ? 0 : this.order.length - 1;
      if (this.order.length) this.look(this.order[Math.min(this.order.length - 1, Math.max(0, next))]);
    }

    look(row) {
      this.at = row;
      const context = this.over.getContext("2d"), { ratio, width, height } = this.frame;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      this.tip.hidden = row < 0;
      this.over.style.cursor = row < 0 ? "" : "pointer";
      this.said(row);
      if (row < 0) return;
      const [x, y] = [this.px[row], this.py[row]];
      context.lineWidth = 2;
      context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
      context.beginPath();
      context.arc(x, y, this.radius(this.shown.length) + 5, 0, 2 * Math.PI);
      context.stroke();
      const { offsetWidth, offsetHeight } = this.tip;
      this.tip.style.left = `${Math.max(4, Math.min(width - offsetWidth - 4, x + (x > width / 2 ? -offsetWidth - 14 : 14)))}px`;
      this.tip.style.top = `${Math.max(4, Math.min(height - offsetHeight - 4, y - offsetHeight / 2))}px`;
    }
  }

  return { Picture };
})();
