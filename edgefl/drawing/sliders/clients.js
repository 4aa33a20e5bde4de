// Each client's verdict as text: on the mark under the hand, and in a table of pages.
"use strict";

const edgeflClients = (() => {
  const { make, fill, plural } = edgeflParts;
  const { show, count } = edgeflUnits;
  const PAGE = 50;

  function names({ cell: { fleet } }, row) {
    const { kinds, devices, links } = fleet.given;
    return { kind: kinds[fleet.kind[row]], device: devices[fleet.device[row]].name, link: links[fleet.link[row]].name };
  }

  function verdictWords(record, judged, client) {
    if (client === null) return "left out by the method";
    if (client.eligible) return "can train";
    const deadline = client.binding === "seconds" && client.budgets.seconds === judged.deadline;
    return `left out by ${edgeflAnswer.nounOf(record, deadline ? "deadline" : client.binding)}`;
  }

  // "12.3 MiB of 13.9 MiB, 1.6 MiB left"
  function budgetWords(client, budget) {
    const takes = show(client.costs[budget.name], budget.unit), may = client.budgets[budget.name], margin = client.margins[budget.name];
    if (may === Infinity) return takes;
    return `${takes} of ${show(may, budget.unit)}, ${margin < 0 ? `${show(-margin, budget.unit)} too much` : `${show(margin, budget.unit)} left`}`;
  }

  const limited = (record, judged) => record.budgets.filter(({ name }) => judged.allowed[name]?.some((value) => value < Infinity));

  // What the mark under the hand says.
  function tip(ex, judged, turnIndex, row) {
    const { record } = ex, client = ex.client(judged, row, turnIndex), { fleet } = judged.cell, { kind, device, link } = names(judged, row);
    const n = fleet.counts[row], who = n > 1 ? plural(n, "client") : `Client ${row}`;
    const lines = record.budgets.filter(({ name }) => judged.allowed[name] && client).map((budget) => {
      const bad = client.margins[budget.name] < 0, whose = budget.name === "memory" && client.memory_limit === "device" ? " (what the device has)" : "";
      return make("div", { class: bad ? "bad" : "" }, make("dt", { textContent: budget.noun }), make("dd", { textContent: budgetWords(client, budget) + whose }));
    });
    return [
      make("strong", { textContent: `${who}: ${verdictWords(record, judged, client)}` }),
      make("p", { class: "soft", textContent: `${kind}, ${device}, ${link}, ${plural(fleet.samples[row], "sample")}` }),
      make("dl", {}, ...lines),
    ];
  }

  class Table {
    constructor(root, ex) {
      this.ex = ex;
      this.page = 0;
      this.details = root;
      this.table = root.querySelector("table");
      this.words = root.querySelector("[data-words]");
      [this.back, this.next] = root.querySelectorAll("button");
      this.sort = root.querySelector("select");
      const turn = (step) => {
        this.page += step;
        this.draw();
      };
      this.back.addEventListener("click", () => turn(-1));
      this.next.addEventListener("click", () => turn(1));
      this.sort.addEventListener("change", () => turn(-this.page));
      root.addEventListener("toggle", () => this.draw());
    }

    // Rows that `shown` has; drawn only while it is open.
    show(judged, turnIndex, shown) {
      Object.assign(this, { judged, turnIndex, shown });
      this.draw();
    }

    draw() {
      if (!this.details.open || !this.judged) return;
      const { ex, judged, turnIndex } = this, { near } = judged.turns[turnIndex], { counts } = judged.cell.fleet, rows = [];
      for (let i = 0; i < this.shown.length; i++) if (this.shown[i]) rows.push(i);
      if (this.sort.value === "near") rows.sort((a, b) => (near[a] === near[b] ? a - b : near[a] - near[b]));
      const pages = Math.max(1, Math.ceil(rows.length / PAGE));
      this.page = Math.min(pages - 1, Math.max(0, this.page));
      const grouped = counts.some((n) => n > 1), budgets = limited(ex.record, judged);
      const titles = [{ text: grouped ? "clients" : "client", number: true }, ...["kind", "device", "link"].map((text) => ({ text })),
        { text: "verdict" }, ...budgets.map(({ noun }) => ({ text: noun, number: true }))];
      fill(this.table, titles, rows.slice(this.page * PAGE, (this.page + 1) * PAGE).map((row) => {
        const client = ex.client(judged, row, turnIndex), { kind, device, link } = names(judged, row);
        return [grouped ? count(counts[row]) : String(row), kind, device, link, verdictWords(ex.record, judged, client),
          ...budgets.map((budget) => (client ? budgetWords(client, budget) : "-"))];
      }));
      const from = this.page * PAGE;
      this.words.textContent = rows.length ? `${count(from + 1)} to ${count(Math.min(from + PAGE, rows.length))} of ${count(rows.length)} that are shown` : "none is shown";
      this.back.disabled = this.page === 0;
      this.next.disabled = this.page >= pages - 1;
    }
  }

  return { Table, tip };
})();
