// The page of edgefl sweep --page: what is chosen and set, and everything that follows from it.
"use strict";

(() => {
  const { make, fill, oncePerFrame } = edgeflParts;
  const { count, show } = edgeflUnits;
  const data = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.getElementById("explore"), part = (name) => root.querySelector(`[data-part="${name}"]`);
  const record = data("record"), { axes: titled, ...palette } = data("shown");
  const ex = new edgeflVerdicts.Explorer(record);
  const hidden = new Set();
  let state, unknown, judged, turnIndex;

  // --- parts

  const choices = new edgeflChoices.Choices(part("choices"), record, titled, (a, index) => {
    const at = record.cells[state.cell].at.map((own, b) => (b === a ? index : own));
    change({ cell: edgeflState.cellAt(record, at) });
  });
  const sliders = new edgeflSliders.Sliders(part("limits"), part("more"), ex, (name, value, done) => {
    const set = { ...state.set };
    delete set[name];
    if (value !== undefined) {
      set[name] = value;
      if (name === "share") delete set.memory;
      if (name === "memory") delete set.share;
    }
    change({ set }, done);
  });
  const picture = new edgeflFleet.Picture(part("picture"), record, palette, (row) => {
    if (row >= 0) picture.tip.replaceChildren(...edgeflClients.tip(ex, judged, turnIndex, row));
  });
  const memory = new edgeflMemory.Memory(part("memory"), record, palette);
  const table = new edgeflClients.Table(part("clients"), ex);

  const legend = picture.verdicts.map((verdict) => {
    const button = make("button", { type: "button", "aria-pressed": "true" },
      make("i", { class: "mark", "aria-hidden": "true", textContent: verdict.sign }), make("span"));
    button.addEventListener("click", () => {
      if (!hidden.delete(verdict.name)) hidden.add(verdict.name);
      button.setAttribute("aria-pressed", String(!hidden.has(verdict.name)));
      drawFleet();
    });
    part("legend").append(make("li", {}, button));
    return button;
  });

  const looks = Object.fromEntries(["stage", "kind", "across", "up"].map((name) => {
    const select = part(name);
    select.addEventListener("change", () => change({ look: { ...state.look, [name]: select.value } }));
    return [name, select];
  }));
  const options = (select, of) => {
    const words = JSON.stringify(of);
    if (select.dataset.words === words) return;
    select.dataset.words = words;
    select.replaceChildren(...of.map(([value, textContent]) => make("option", { value, textContent })));
  };

  const beside = { table: part("beside"), details: part("beside").closest("details") };
  beside.details.hidden = !titled.length;
  beside.details.addEventListener("toggle", showChoices);

  // --- what follows from the state

  // What a round costs as the scenario is, or in the first cell that can run.
  let own;
  function scenario() {
    own ??= ex.round(ex.judge(edgeflState.first(record)) ?? judged);
    return own;
  }

  function showAnswer(stage) {
    part("answer").textContent = edgeflAnswer.sentence(record, judged);
    const whole = judged.hardest;
    const colours = { fits: palette.fits, deadline: palette.budgets.seconds, ...palette.budgets };
    const pieces = [["fits", whole.eligible], ...whole.causes, ["method", whole.left_out]].filter(([, n]) => n);
    part("share").replaceChildren(...pieces.map(([name, n]) => make("i", {
      title: `${name} ${count(n)}`, style: `flex-grow:${n / whole.clients};background:${edgeflTheme.shade(colours[name] ?? palette.other)}`,
    })));
    const { eligible: fits, left_out: left, causes } = stage, by = Object.fromEntries(causes);
    by.seconds = (by.seconds ?? 0) + (by.deadline ?? 0);
    picture.verdicts.forEach((verdict, code) => {
      const n = code ? by[verdict.name] ?? 0 : fits;
      legend[code].lastChild.textContent = `${verdict.words} ${count(n)}`;
      legend[code].firstChild.style.color = edgeflTheme.shade(verdict.colour);
      legend[code].parentElement.hidden = code > 0 && !n;
    });
    part("left").textContent = left ? `The method leaves ${count(left)} out; they aren't shown.` : "";
  }

  function showCosts() {
    const whole = ex.round(judged), one = judged.stages.length === 1;
    const own = edgeflAnswer.costs(scenario());
    part("tiles").replaceChildren(...edgeflAnswer.costs(whole).map(([name, words], i) => make("div", {}, make("dt", { textContent: name }),
      make("dd", {}, words, make("small", { class: "soft", textContent: own[i][1] === words ? "" : `${record.compares ? "at first" : "scenario"}: ${own[i][1]}` })))));
    const titles = ["stage", "rounds", "can train", ...edgeflAnswer.costs(whole).map(([name]) => name)].map((text, i) => ({ text, number: i > 0 }));
    const rows = judged.stages.map((stage) => [`${stage.stage}${stage === judged.hardest && !one ? " (hardest)" : ""}`, count(stage.rounds),
      `${count(stage.eligible)} of ${count(stage.clients)}`, ...edgeflAnswer.costs(stage).map(([, words]) => words)]);
    if (!one) rows.push(["all", count(whole.rounds), `${count(judged.hardest.eligible)} of ${count(judged.hardest.clients)}`, ...edgeflAnswer.costs(whole).map(([, words]) => words)]);
    fill(part("stages"), titles, rows);
  }

  // A row for each choice with all else as it is; they are judged only while the table is open.
  function showChoices() {
    const { table, details } = beside, { at } = record.cells[state.cell];
    if (!details.open || !judged) return;
    const names = edgeflAnswer.costs(ex.round(judged)).map(([name]) => name);
    const titles = ["choice", "can train", ...names].map((text, i) => ({ text, number: i > 0 }));
    fill(table, titles, titled.flatMap((axis, a) => axis.choices.map((choice, index) => {
      const cell = edgeflState.cellAt(record, at.map((own, b) => (b === a ? index : own))), other = ex.judge({ ...state, cell });
      const words = `${axis.title}: ${choice}${index === at[a] ? " (now)" : ""}`;
      if (!other) return [words, "can't run", ...names.map(() => "")];
      const { eligible, clients } = other.hardest;
      return [words, `${count(eligible)} of ${count(clients)}`, ...edgeflAnswer.costs(ex.round(other)).map(([, cost]) => cost)];
    })));
  }

  function showLost(stage) {
    const rows = edgeflAnswer.byKind(judged, stage.turns[0]), lost = ex.data(judged, stage.turns[0].eligible), never = ex.data(judged, judged.ever);
    const samples = rows.reduce((sum, row) => sum + row.samples, 0);
    const share = samples ? lost.excluded_samples / samples : 0;
    const sentences = [lost.excluded_samples ? `${count(lost.excluded_samples)} of ${count(samples)} samples (${show(share, "share")}) are lost${judged.stages.length > 1 ? ` in stage ${stage.stage}` : ""}.` : "No sample is lost."];
    for (const [noun, several, names] of [["modality", "modalities", lost.lost_modalities], ["class", "classes", lost.lost_classes]]) {
      if (!names?.length) continue;
      const some = names.length > 12 ? `${names.slice(0, 12).join(", ")} and ${names.length - 12} more` : edgeflParts.listed(names.map(String));
      sentences.push(`Only clients that are left out have the ${names.length > 1 ? several : noun} ${some}.`);
    }
    if (lost.lost_classes && !lost.lost_classes.length && lost.excluded_samples) sentences.push("No class is lost as a whole.");
    if (judged.stages.length > 1 && lost.excluded_samples) {
      sentences.push(never.excluded_samples ? `${count(never.excluded_samples)} train in no stage.` : "Each trains in some stage.");
    }
    part("lost").textContent = sentences.join(" ");
    part("kinds").replaceChildren(...rows.filter((row) => row.clients).map((row) => {
      const colour = edgeflTheme.shade(palette.kinds[judged.cell.fleet.given.kinds.indexOf(row.kind) % palette.kinds.length]);
      const kept = row.samples ? 1 - row.lostSamples / row.samples : 1;
      return make("div", { class: "memory" }, make("span", {}, `${row.kind} `, make("small", { class: "soft", textContent:
        `${count(row.samples - row.lostSamples)} of ${count(row.samples)} samples, ${count(row.clients - row.lostClients)} of ${count(row.clients)} clients` })),
      make("div", { class: "bar kept", "aria-hidden": "true" }, make("i", { style: `width:${kept * 100}%;background:${colour}` })));
    }));
    fill(part("losses"), ["kind", "clients", "left out", "samples", "lost", "share lost"].map((text, i) => ({ text, number: i > 0 })),
      rows.map((row) => [row.kind, count(row.clients), count(row.lostClients), count(row.samples), count(row.lostSamples), show(row.samples ? row.lostSamples / row.samples : 0, "share")]));
  }

  function drawFleet() {
    const { across, up, kind } = state.look;
    picture.draw({ ex, judged, turn: judged.turns[turnIndex], kind, across, up, hidden });
    table.show(judged, turnIndex, picture.shown);
  }

  function showLooks() {
    const { stages } = judged, { kinds } = judged.cell.fleet.given;
    options(looks.stage, [["", `the hardest (${judged.hardest.stage})`], ...stages.map(({ stage }) => [String(stage), String(stage)])]);
    options(looks.kind, [["", "all kinds"], ...kinds.map((kind) => [kind, kind])]);
    const axes = Object.values(picture.axes).map(({ key, short }) => [key, short]);
    options(looks.across, [["", picture.axes.seconds.short], ...axes.filter(([key]) => key !== "seconds")]);
    options(looks.up, [["", "memory"], ...axes]);
    for (const [name, select] of Object.entries(looks)) {
      select.value = state.look[name];
      if (select.selectedIndex < 0) select.value = state.look[name] = "";
    }
    looks.stage.parentElement.hidden = stages.length === 1;
    looks.kind.parentElement.hidden = kinds.length === 1;
  }

  function render() {
    const began = performance.now();
    choices.show(state);
    sliders.show(state);
    judged = ex.judge(state);
    const { refused } = record.cells[state.cell];
    part("notice").hidden = !refused && !unknown.length;
    part("notice").textContent = [refused && `This can't run: ${refused}`, unknown.length && `The link has what this page hasn't: ${unknown.join(", ")}`].filter(Boolean).join(". ");
    part("results").hidden = !judged;
    part("command").textContent = ex.command(state);
    if (judged) {
      const stage = judged.stages.find((each) => String(each.stage) === state.look.stage) ?? judged.hardest;
      turnIndex = judged.turns.indexOf(stage.turns[0]);
      showLooks();
      showAnswer(stage);
      drawFleet();
      memory.show(judged, stage, state.look.kind);
      showCosts();
      showChoices();
      showLost(stage);
    } else {
      part("answer").textContent = "This combination can't run.";
      part("share").replaceChildren();
    }
    root.dataset.milliseconds = String(performance.now() - began);
    root.dataset.state = edgeflState.write(record, state);
  }
  const soon = oncePerFrame(render);

  // --- the state and its address

  function change(parts, done = true) {
    state = { ...state, ...parts };
    unknown = [];
    soon();
    if (!done) return;
    const words = edgeflState.write(record, state);
    if (words !== ours(location.hash)) location.hash = words || "all=";
  }

  // The address's part of this page: other links within a page have no "=".
  const ours = (hash) => (hash.includes("=") ? hash.slice(1).replace(/^all=$/, "") : "");

  function arrive() {
    if (state && location.hash && !location.hash.includes("=")) return;
    const words = ours(location.hash);
    if (state && words === edgeflState.write(record, state)) return;
    [state, unknown] = edgeflState.read(record, words);
    soon();
  }

  part("reset").addEventListener("click", () => change({ cell: record.start, set: {} }));
  part("copy-command").addEventListener("click", (event) => edgeflParts.copy(event.target, part("command").textContent));
  part("copy-link").addEventListener("click", (event) => edgeflParts.copy(event.target, location.href));
  picture.titled = (words) => {
    part("up-title").textContent = `↑ ${words}`;
  };
  window.addEventListener("hashchange", arrive);
  window.addEventListener("resize", soon);
  arrive();
  edgeflTheme.follow(soon);
})();
