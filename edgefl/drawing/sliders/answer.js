// The answer in words and numbers: who can train, whom what leaves out, what a round costs, what is lost.
"use strict";

const edgeflAnswer = (() => {
  const { count, show } = edgeflUnits;

  const nounOf = (record, cause) => (cause === "deadline" ? "the deadline" : record.budgets.find((each) => each.name === cause)?.noun ?? cause);

  // "31 of 40 clients can train in the hardest stage, 3; memory leaves 7 out, the deadline 2"
  function sentence(record, judged) {
    const { eligible: fits, left_out: left, clients, causes } = judged.hardest;
    const where = judged.stages.length > 1 ? ` in the hardest stage, ${judged.hardest.stage}` : "";
    const who = fits === clients ? `All ${count(clients)} clients can train` : `${fits ? count(fits) : "None"} of ${count(clients)} clients can train${where}`;
    const refused = causes.map(([cause, n], i) => `${nounOf(record, cause)} ${i ? "" : "leaves "}${count(n)}${i ? "" : " out"}`);
    if (left) refused.push(`the method ${refused.length ? "" : "leaves "}${count(left)}${refused.length ? "" : " out"}`);
    return refused.length ? `${who}; ${refused.join(", ")}.` : `${who}.`;
  }

  // Samples and clients of each kind, and what of them isn't in: [{kind, clients, samples, lostClients, lostSamples}].
  function byKind(judged, turn) {
    const { fleet } = judged.cell, { counts, kind, samples } = fleet;
    const rows = fleet.given.kinds.map((name) => ({ kind: name, clients: 0, samples: 0, lostClients: 0, lostSamples: 0 }));
    for (let i = 0; i < counts.length; i++) {
      const row = rows[kind[i]], n = counts[i];
      row.clients += n;
      row.samples += n * samples[i];
      if (!turn.eligible[i]) {
        row.lostClients += n;
        row.lostSamples += n * samples[i];
      }
    }
    return rows;
  }

  // What a round costs in the mean, [name, words], of `ex.round` or of a stage; what a record hasn't (NaN) is left out.
  function costs(round) {
    const all = [
      ["time", round.round_seconds, "s"], ["energy", round.energy_joules, "J"], ["computation", round.flops, "FLOP"],
      ["down", round.download_bytes, "B"], ["up", round.upload_bytes, "B"], ["peak memory", round.peak_memory_bytes, "B"],
    ];
    return all.filter(([, value]) => !Number.isNaN(value)).map(([name, value, unit]) => [name, show(value, unit)]);
  }

  return { nounOf, sentence, byKind, costs };
})();
