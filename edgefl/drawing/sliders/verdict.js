// Verdicts of all clients from the record of `edgefl sweep --page` (edgefl/drawing/sliders/page_data.py), with no document.
//
// What a page can ask about can't be computed before: its budgets move.  So `gate` is edgefl/planning/eligibility.py's,
// `choose` that of edgefl/planning/judge.py, and `allowed` is draw_budgets of edgefl/devices/fleet.py, each once, on the
// same 64-bit numbers; tests/commands/sweep/page/test_verdicts.py holds them against Python's, at thresholds too.
//
// A state is {cell, set}: the index of a cell, and what is set in place of what owners grant, by name:
//   a budget's name: its amount for every client, Infinity for no limit;  "share": memory as a share of the device's RAM,
//   which goes before "memory";  "deadline": seconds, Infinity for none;  a cap's name ("energy_total"): its amount.
// What isn't in `set` is as the scenario has it.
"use strict";

const edgeflVerdicts = (() => {
  // The caps by name: the budget of a round that each adds up, and what it is for.
  const CAPS = {
    bytes_per_day: ["bytes", "day"], energy_per_day: ["joules", "day"], bytes_total: ["bytes", "job"], energy_total: ["joules", "job"],
  };
  const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

  function decoded(column) {
    const text = atob(column.data), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const Type = TYPES[column.type], values = new Type(bytes.buffer);
    return values.length < column.length ? new Type(column.length).fill(values[0]) : values;
  }

  function sum(values) {
    let total = 0;
    for (const value of values) total += value;
    return total;
  }

  // The mean of [value, weight] pairs, of which null values are left out; null if none is left.
  function weighted(pairs) {
    const known = pairs.filter(([value]) => value !== null);
    const whole = sum(known.map(([, weight]) => weight));
    return known.length && whole ? sum(known.map(([value, weight]) => value * weight)) / whole : null;
  }

  const margin = (budget, cost) => (budget === Infinity ? Infinity : budget - cost);

  // The gate for a row of `limits` and a spot of `costs`, arrays by budget: whether it fits, the smallest share of a budget
  // that is left (Infinity without budgets), and that budget's index, -1 without budgets.
  function gate(limits, row, costs, spot) {
    let fits = true, near = Infinity, binding = -1;
    for (let b = 0; b < limits.length; b++) {
      const budget = limits[b][row];
      if (budget === Infinity) continue;
      const left = margin(budget, costs[b][spot]), share = budget > 0 ? left / budget : left < 0 ? -Infinity : 0;
      if (left < 0) fits = false;
      if (binding < 0 || share < near) [near, binding] = [share, b];
    }
    return { fits, near, binding };
  }

  // The offer that each row takes, of `offers` [{index, stage, costs}], best first: the first that fits, or else the nearest,
  // of equally near ones that of the later stage.  `spot` has each row's place in costs, `asks` says who is asked.
  function choose(offers, limits, spot, asks) {
    const rows = spot.length, offer = new Int16Array(rows).fill(-1), binding = new Int8Array(rows).fill(-1);
    const eligible = new Uint8Array(rows), near = new Float64Array(rows).fill(Infinity);
    for (let i = 0; i < rows; i++) {
      if (!asks(spot[i])) continue;
      let taken = null;
      for (const each of offers) {
        const verdict = gate(limits, i, each.costs, spot[i]);
        const nearer = verdict.near > near[i] || (verdict.near === near[i] && each.stage > taken?.stage);
        if (!verdict.fits && taken && !nearer) continue;
        taken = each;
        [offer[i], near[i], binding[i], eligible[i]] = [each.index, verdict.near, verdict.binding, verdict.fits];
        if (verdict.fits) break;
      }
    }
    return { offer, eligible, binding, near };
  }

  class Explorer {
    constructor(record) {
      this.record = record;
      this._columns = new Map();
      this._cells = new Map();
      this._fleets = new Map();
    }

    column(place) {
      if (!this._columns.has(place)) this._columns.set(place, decoded(this.record.columns[place]));
      return this._columns.get(place);
    }

    // A fleet with its columns as typed arrays [rows]: counts, kind, device, link, samples, granted {budget: [rows]},
    // caps {name: [rows]}, names of its budgets, and held (bytes of classes, null for declared data).
    fleet(index) {
      if (!this._fleets.has(index)) {
        const given = this.record.fleets[index];
        const granted = Object.fromEntries(Object.entries(given.granted).map(([name, at]) => [name, this.column(at)]));
        this._fleets.set(index, {
          given, granted, names: Object.keys(given.granted), rows: given.rows,
          counts: this.column(given.counts), kind: this.column(given.kind), device: this.column(given.device),
          link: this.column(given.link), samples: this.column(given.samples),
          caps: Object.fromEntries(Object.entries(given.caps).map(([name, at]) => [name, this.column(at)])),
          held: given.classes === null ? null : this.column(given.classes.held),
        });
      }
      return this._fleets.get(index);
    }

    // A cell with its costs by spot: offers[i].costs[budget index] is [spots]; null if it is refused.
    cell(index) {
      if (!this._cells.has(index)) {
        const priced = this.record.cells[index].priced;
        if (!priced) return null;
        const fleet = this.fleet(priced.fleet), spot = this.column(priced.spot);
        const group = this.column(priced.group), pair = this.column(priced.pair);
        const offers = priced.offers.map((offer, index) => {
          const places = this._places(fleet, group, pair, this.column(offer.transfer));
          return {
            index, given: offer, stage: offer.stage, takesPart: this.column(offer.takes_part),
            costs: fleet.names.map((name) => this._cost(offer.costs[name], places)),
            download: this.column(offer.download_bytes), upload: this.column(offer.upload_bytes),
          };
        });
        this._cells.set(index, { given: priced, fleet, spot, group, offers, turns: priced.turns });
      }
      return this._cells.get(index);
    }

    // Where the columns of terms have the numbers of each spot, by what they are by.
    _places(fleet, group, pair, transfer) {
      const links = fleet.given.links.length, devices = fleet.given.devices.length;
      return {
        spot: Uint32Array.from(group, (_, at) => at), group,
        device: Uint32Array.from(group, (g, at) => g * devices + Math.floor(pair[at] / links)),
        pair: Uint32Array.from(group, (g, at) => transfer[g] * devices * links + pair[at]),
      };
    }

    _cost(terms, places) {
      const total = new Float64Array(places.group.length);
      for (const { by, values } of terms) {
        const numbers = this.column(values), at = places[by];
        for (let spot = 0; spot < total.length; spot++) total[spot] += numbers[at[spot]];
      }
      return total;
    }

    // What each client may use of each budget: {allowed: {budget: [rows]}, ofDevice: [rows], deadline}.
    allowed(state) {
      const cell = this.cell(state.cell), fleet = cell.fleet, set = state.set, rows = fleet.rows;
      const whole = Object.fromEntries(this.record.budgets.map((budget) => [budget.name, budget.whole]));
      const allowed = {}, ofDevice = new Uint8Array(rows);
      for (const name of fleet.names) {
        allowed[name] = name in set
          ? new Float64Array(rows).fill(whole[name] ? Math.floor(set[name]) : set[name])
          : Float64Array.from(fleet.granted[name]);
      }
      const devices = fleet.given.devices, memory = allowed.memory;
      if ("share" in set) {
        const of = devices.map((d) => Math.floor(Math.max(set.share * d.ram_bytes - d.runtime_overhead_bytes, 0)));
        for (let i = 0; i < rows; i++) memory[i] = of[fleet.device[i]];
      }
      if (fleet.given.within_device) {
        for (let i = 0; i < rows; i++) {
          const available = devices[fleet.device[i]].available_memory_bytes;
          if (memory[i] > available) [memory[i], ofDevice[i]] = [available, 1];
        }
      }
      for (const [name, [budget]] of Object.entries(CAPS)) {
        if (!(name in set) && !(name in fleet.caps)) continue;
        for (let i = 0; i < rows; i++) {
          const counts = budget !== "bytes" || fleet.given.links[fleet.link[i]].capped;
          const cap = !counts ? Infinity : name in set ? set[name] : fleet.caps[name][i];
          if (cap < allowed[budget][i]) allowed[budget][i] = cap;
        }
      }
      const deadline = "deadline" in set ? set.deadline : cell.given.deadline ?? Infinity;
      for (let i = 0; i < rows; i++) if (deadline < allowed.seconds[i]) allowed.seconds[i] = deadline;
      return { allowed, ofDevice, deadline };
    }

    // The verdicts of a state; null for a cell that is refused.  Each of `turns` has [rows]: offer (index into the
    // cell's offers of what a client takes, -1 if the method leaves it out), eligible, binding (index into `names`, -1
    // if nothing limits it; -1 too for those that are left out) and near (smallest share of a budget that is left).
    judge(state) {
      const cell = this.cell(state.cell);
      if (cell === null) return null;
      const { allowed, ofDevice, deadline } = this.allowed(state);
      const names = cell.fleet.names, limits = names.map((name) => allowed[name]);
      const turns = cell.turns.map(({ stage, rounds, offers: places }) => {
        const offers = places.map((index) => cell.offers[index]);
        return { stage, rounds, ...choose(offers, limits, cell.spot, (spot) => offers[0].takesPart[cell.group[spot]]) };
      });
      const ever = new Uint8Array(cell.fleet.rows);
      for (const turn of turns) for (let i = 0; i < ever.length; i++) ever[i] |= turn.eligible[i];
      const stages = [];
      for (const turn of turns) {
        const last = stages[stages.length - 1];
        if (last && last.stage === turn.stage) last.turns.push(turn);
        else stages.push({ stage: turn.stage, turns: [turn] });
      }
      const judged = { state, cell, names, allowed, ofDevice, deadline, turns, ever };
      judged.stages = stages.map((stage) => this._stage(judged, stage));
      const harder = (a, b) => a.eligible - b.eligible || b.peak_memory_bytes - a.peak_memory_bytes;
      judged.hardest = judged.stages.reduce((least, stage) => (harder(stage, least) < 0 ? stage : least));
      return judged;
    }

    // Counts of a stage, whose verdicts are those of its first turn, as sweep's row of the stage has them.  `causes` has
    // [name, clients], the most first: budgets, and "deadline" for those whose time the deadline limits.
    _stage(judged, { stage, turns }) {
      const { names, deadline } = judged, { counts } = judged.cell.fleet, [{ offer, eligible: able, binding }] = turns;
      const seconds = names.indexOf("seconds"), by = new Float64Array(names.length + 1);
      let eligible = 0, clients = 0, leftOut = 0;
      for (let i = 0; i < counts.length; i++) {
        clients += counts[i];
        if (offer[i] < 0) leftOut += counts[i];
        else if (able[i]) eligible += counts[i];
        else by[binding[i] === seconds && judged.allowed.seconds[i] === deadline ? names.length : binding[i]] += counts[i];
      }
      const causes = [...names, "deadline"].map((name, b) => [name, by[b]]).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
      const rounds = sum(turns.map((turn) => turn.rounds)), means = turns.map((turn) => this._means(judged, turn));
      const byRounds = (name) => weighted(means.map((mean, t) => [mean[name], turns[t].rounds]));
      const byClients = (name) => weighted(means.map((mean, t) => [mean[name], turns[t].rounds * mean.clients]));
      return {
        stage, rounds, turns, clients, eligible, left_out: leftOut, causes,
        round_seconds: byRounds("seconds"), energy_joules: byRounds("joules"), flops: byClients("flops"),
        download_bytes: byClients("download"), upload_bytes: byClients("upload"),
        peak_memory_bytes: Math.max(...means.map((mean) => mean.peak)),
      };
    }

    // Seconds of the slowest eligible client of a turn, and means over the eligible ones; null without any.
    // Clients with the same offer on the same spot cost the same, so they are counted first.
    _means(judged, turn) {
      if (turn.means) return turn.means;
      const { cell, names } = judged, { counts } = cell.fleet, { spot, group } = cell, spots = group.length;
      const [memory, flops, seconds, joules] = ["memory", "flops", "seconds", "joules"].map((name) => names.indexOf(name));
      const asked = new Float64Array(cell.offers.length * spots), able = new Float64Array(cell.offers.length * spots);
      for (let i = 0; i < counts.length; i++) {
        if (turn.offer[i] < 0) continue;
        const place = turn.offer[i] * spots + spot[i];
        asked[place] += counts[i];
        if (turn.eligible[i]) able[place] += counts[i];
      }
      const total = { clients: 0, seconds: null, joules: 0, flops: 0, download: 0, upload: 0, peak: 0 };
      cell.offers.forEach((offer, index) => {
        for (let at = 0; at < spots; at++) {
          const n = able[index * spots + at];
          if (asked[index * spots + at]) total.peak = Math.max(total.peak, offer.costs[memory][at]);
          if (!n) continue;
          total.clients += n;
          total.seconds = Math.max(total.seconds ?? 0, offer.costs[seconds][at]);
          total.joules += n * offer.costs[joules][at];
          total.flops += n * offer.costs[flops][at];
          total.download += n * offer.download[group[at]];
          total.upload += n * offer.upload[group[at]];
        }
      });
      for (const name of ["joules", "flops", "download", "upload"]) {
        total[name] = total.clients ? total[name] / total.clients : null;
      }
      turn.means = total;
      return total;
    }

    // The costs of a round over all stages, as sweep's row of the cell has them.
    round(judged) {
      const over = (name, weight) => weighted(judged.stages.map((stage) => [stage[name], weight(stage)]));
      const places = (stage) => stage.rounds * stage.eligible, rounds = (stage) => stage.rounds;
      const slowest = judged.turns.map((turn) => [this._means(judged, turn).seconds, turn.rounds]);
      return {
        round_seconds: weighted(slowest), energy_joules: over("energy_joules", places), flops: over("flops", places),
        download_bytes: over("download_bytes", places), upload_bytes: over("upload_bytes", places),
        rounds: sum(judged.stages.map(rounds)), peak_memory_bytes: Math.max(...judged.stages.map((s) => s.peak_memory_bytes)),
      };
    }

    // What is lost without the clients that a mask [rows] has (`judged.ever`, or a turn's `eligible`).
    data(judged, able) {
      const { fleet } = judged.cell, { counts, samples, kind, held, given } = fleet;
      const whole = new Float64Array(given.kinds.length), part = new Float64Array(given.kinds.length);
      for (let i = 0; i < counts.length; i++) {
        whole[kind[i]] += counts[i] * samples[i];
        if (able[i]) part[kind[i]] += counts[i] * samples[i];
      }
      const modalities = {};
      given.kinds.forEach((name, k) => name.split("-").forEach((modality) => {
        const [all, kept] = modalities[modality] ?? [0, 0];
        modalities[modality] = [all + whole[k], kept + part[k]];
      }));
      return {
        excluded_samples: sum(whole) - sum(part),
        lost_modalities: Object.keys(modalities).filter((name) => modalities[name][0] && !modalities[name][1]),
        lost_classes: held && this._lostClasses(fleet, able),
      };
    }

    _lostClasses({ held, given: { classes: { names, width } } }, able) {
      const all = new Uint8Array(width), kept = new Uint8Array(width);
      for (let i = 0; i < able.length; i++) {
        for (let b = 0; b < width; b++) {
          all[b] |= held[i * width + b];
          if (able[i]) kept[b] |= held[i * width + b];
        }
      }
      const has = (bits, c) => (bits[c >> 3] >> (c & 7)) & 1;
      return names.filter((_, c) => has(all, c) && !has(kept, c));
    }

    // One client's round in a turn: costs, budgets and margins by name (Infinity where unlimited), what it binds and whose
    // word its memory is; null if the method leaves it out.
    client(judged, row, turnIndex) {
      const turn = judged.turns[turnIndex], { cell, names } = judged;
      if (turn.offer[row] < 0) return null;
      const offer = cell.offers[turn.offer[row]], spot = cell.spot[row];
      const costs = {}, budgets = {}, margins = {};
      names.forEach((name, b) => {
        costs[name] = offer.costs[b][spot];
        budgets[name] = judged.allowed[name][row];
        margins[name] = margin(budgets[name], costs[name]);
      });
      return {
        eligible: Boolean(turn.eligible[row]), binding: turn.binding[row] < 0 ? null : names[turn.binding[row]],
        costs, budgets, margins, near: turn.near[row],
        memory_limit: budgets.memory === Infinity ? null : judged.ofDevice[row] ? "device" : "owner",
      };
    }

    // What a state changes, as `PATH=VALUE` of `--set` or `--vary`: first the choices that differ from the scenario's own,
    // then what is set.
    changes({ cell, set }) {
      const { axes, budgets, cells } = this.record;
      const paths = Object.fromEntries(budgets.map((budget) => [budget.name, budget]));
      const limits = Object.entries(set).flatMap(([name, value]) => {
        if (name === "memory" && "share" in set) return [];
        if (name === "share") return [`fleet.budgets.memory=${value} of device`];
        if (name === "deadline") return [`round.deadline=${value === Infinity ? "null" : `${value} s`}`];
        const { path, unit } = name in CAPS ? { path: `fleet.budgets.${name}`, unit: paths[CAPS[name][0]].unit } : paths[name];
        return [`${path}=${value === Infinity ? "unlimited" : `${value} ${unit}`.trim()}`];
      });
      const moved = new Set(limits.map((change) => change.split("=", 1)[0]));  // what is set goes before a choice of it
      const chosen = axes.flatMap((axis, a) => {
        const index = cells[cell].at[a], same = index === axis.own && !this.record.compares;
        return same || moved.has(axis.path) ? [] : [`${axis.path}=${axis.choices[index].text}`];
      });
      return [...chosen, ...limits];
    }

    // The command that prints the same counts, for a shell.
    command(state) {
      const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
      const option = this.record.compares ? "--vary" : "--set";
      const { given, overrides } = this.record;
      const words = ["edgefl", "sweep", given, ...overrides.flatMap((each) => ["--set", each])];
      for (const change of this.changes(state)) words.push(option, change);
      return words.map(quoted).join(" ");
    }
  }

  return { Explorer, gate, choose, CAPS };
})();
