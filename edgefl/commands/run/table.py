"""Tables of ``edgefl run``: at most 100 columns wide, readable without colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgefl import units
from edgefl.drawing.text_tables import (
    MOST_COLUMNS,
    NOTHING,
    format_counts,
    mib,
    new_table,
    or_dash,
    percent,
    print_section,
    refusals,
    score,
    screen,
    signed_percent,
    title_of,
)
from edgefl.records.carbon import carbon_words
from edgefl.records.epsilon import privacy_words
from edgefl.records.metrics import OVER_CLIENTS, own_metrics, shown_metrics
from edgefl.records.record import UNSET
from edgefl.records.relays import relay_words
from edgefl.records.rounds import ClientMetrics
from edgefl.records.verified import Verified

if TYPE_CHECKING:
    from edgefl.commands.run.answer import RunAnswer
    from edgefl.records.run import BestRecord
    from edgefl.records.summary import CostRow, PlayedStage, RunComparison, RunRow, RunSummary, Summary


def print_run(answer: RunAnswer, *, full: bool = False) -> None:
    """Print the tables of each run, or with several seeds means over them, and the rules that were checked."""
    from edgefl.commands.compare.table import print_comparison

    if answer.has_runs and (full or not answer.over_seeds):
        print_summary(answer)
    if answer.over_seeds:
        print_comparison(answer.over_seeds, equal=False)
    if answer.verified:
        print_verified(answer.verified)


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print the result of ``facts.summary``: the tables of each run, then the comparison of the runs."""
    console = console or screen()
    for label, facts in summary.runs.items():
        _print_run(console, label, facts)
    if summary.compared is not UNSET and len(summary.compared.rows) > 1:
        _print_compared(console, summary.compared)
    if not summary.finished:
        console.print(Text(f"Not finished: continue with edgefl run --resume {summary.folder}"))


def _print_run(console: Console, label: str, facts: RunSummary) -> None:
    totals = facts.totals
    name = "" if label == facts.scenario else f"{label}: "
    head = f"{name}{facts.method} under {facts.schedule}, {facts.rounds} rounds"
    console.print(Text(f"=== {head} ===", style="bold"))
    if not facts.rounds:
        console.print(Text("no round has finished yet\n"))
        return
    joules = totals.energy_joules
    energy = "energy isn't measured" if joules is None else units.show_joules(joules)
    not_completed = {outcome: n for outcome, n in facts.outcomes.items() if outcome != "completed"}
    console.print(
        Text(
            f"virtual time {facts.time_words}, "
            f"{_updates(facts)}, "
            f"down {units.show_bytes(totals.carried_download_bytes)}, "
            f"up {units.show_bytes(totals.carried_upload_bytes)}, "
            f"{units.show_flops(totals.executed_flops)}, {energy}"
            + (f"\nserver: {units.show_flops(facts.server_flops)}" if facts.server_flops else "")
            + (f"\n{relays}" if (relays := relay_words(totals)) else "")
            + (f"\n{carbon}" if (carbon := carbon_words(totals)) else "")
            + (f"\n{privacy}" if (privacy := privacy_words(facts.privacy)) else "")
            + (f"\nrounds not completed: {format_counts(not_completed)}" if not_completed else "")
            + (f"\n{facts.stopped}" if facts.stopped else "")
            + (f"\n{_best(facts.best, facts.watched_split)}" if facts.best else "")
            + (f"\nthe model diverged: {_divergence_text(facts.diverged_rounds)}" if facts.diverged_rounds else "")
        )
    )
    console.print()
    _print_eligible(console, facts)
    _print_costs(console, facts)
    _print_metrics(console, facts)
    if facts.client_metrics is not UNSET:
        _print_client_metrics(console, facts, facts.client_metrics)


def _best(best: BestRecord, split: str) -> str:
    """Where the best weights are from, as text."""
    if best.value is None:
        return f"best weights: none, as {best.metric} was never finite"
    return f"best weights: round {best.round}, {best.metric.replace('.', ' ', 1)} {best.value:.4g} ({split} split)"


def _divergence_text(rounds: Sequence[int]) -> str:
    """After which rounds the model wasn't finite, as text."""
    if len(rounds) == 1:
        return f"after round {rounds[0]} it wasn't finite"
    return f"after {len(rounds)} rounds, first round {rounds[0]}, it wasn't finite"


def _updates(facts: RunSummary) -> str:
    """Number of updates that arrived in time, and of client rounds with another outcome."""
    others = {outcome: n for outcome, n in facts.flights.items() if outcome not in ("finished", "late")}
    totals = facts.totals
    unavailable = f", {totals.unavailable} unavailable" if totals.unavailable else ""
    failed = f", {format_counts(others)}" if others else ""
    return f"{totals.finished} updates ({totals.late} late{failed}{unavailable})"


def _print_eligible(console: Console, facts: RunSummary) -> None:
    table = new_table("stage", "rounds", "kind", "eligible", "refused by", "on", left=(2, 4, 5))
    for stage in facts.stages:
        for index, (kind, counts) in enumerate(stage.kinds.items()):
            first = (str(stage.stage), str(stage.rounds)) if index == 0 else ("", "")
            table.add_row(
                *first, kind, f"{_range(counts.eligible, counts.most_eligible)} of {counts.clients}",
                refusals(counts.refused_by, counts.refused_memory_by),
                format_counts(counts.refused_devices),
            )  # fmt: skip
    if table.row_count:  # with `method: central` no client takes part
        print_section(console, "Eligible clients by stage and kind", table, "\n".join(_exclusion_lines(facts.stages)))


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _exclusion_lines(stages: Sequence[PlayedStage]) -> list[str]:
    """Samples, classes and modalities that are excluded with refused clients: a line for each stage with some.

    Of a stage in which that varies, the round that excludes most samples counts.
    """
    lines = []
    for stage in stages:
        lost = stage.excluded
        if not lost.samples:
            continue
        share = units.show_share(lost.samples / lost.of_samples)
        words = [f"{lost.samples:,} samples ({share})"]
        for noun, names in (("class", lost.lost_classes), ("modality", lost.lost_modalities)):
            if names:
                plural = noun if len(names) == 1 else {"class": "classes", "modality": "modalities"}[noun]
                words.append(f"the {plural} {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}")
        lines.append(f"Stage {stage.stage} excludes {', '.join(words)}.")
    return lines


def _print_costs(console: Console, facts: RunSummary) -> None:
    table = new_table(
        "stage", "kind", "peak MiB\npredicted", "\nmeasured", "\nerror", "GFLOP\npredicted", "\nerror",
        "down", "up", "time", "energy", left=(1,),
    )  # fmt: skip
    last = None
    for row in facts.costs:
        table.add_row(
            "" if row.stage == last else _stage_of(row),
            row.kind,
            mib(row.peak_memory_bytes),
            or_dash(mib, row.measured_peak_memory_bytes),
            or_dash(signed_percent, row.memory_error),
            or_dash(lambda flops: f"{flops / 1e9:.3g}", row.predicted_flops),
            or_dash(signed_percent, row.flops_error),
            or_dash(units.show_bytes, row.carried_download_bytes),
            or_dash(units.show_bytes, row.carried_upload_bytes),
            or_dash(units.show_seconds, row.virtual_seconds),
            or_dash(units.show_joules, row.energy_joules),
        )
        last = row.stage
    if table.row_count:
        note = "Peaks: of the largest client.  Other costs: means.  Errors: the largest of all measured works."
        print_section(console, "Cost of a client's round", table, note)


def _stage_of(row: CostRow) -> str:
    """The stage of a row, with the part of the model if the schedule offers several parts: ``3, stages 1-2``."""
    return str(row.stage) if row.part is UNSET else f"{row.stage}, {row.part}"


def _print_metrics(console: Console, facts: RunSummary) -> None:
    if not facts.metrics:
        print_section(
            console, "No evaluation yet" if facts.trained else "No metrics: costs were simulated without training"
        )
        return
    shown = shown_metrics(name for values in facts.metrics.values() for name in values)
    table = new_table("kind", *map(title_of, shown), "samples")
    for kind, values in facts.metrics.items():
        chance = facts.chance.get(kind, {})
        # metrics of samples that lack a modality ("accuracy[image]") are shown in a line for each pattern
        for pattern in dict.fromkeys(["", *(f"[{name.split('[')[1]}" for name in values if name.endswith("]"))]):
            cells = []
            for name in shown:
                cell = score(values, name + pattern)  # a dash for a pattern that no sample has
                if spread := values.get(name + pattern + OVER_CLIENTS):
                    cell = f"{cell} ± {spread:.3f}"
                cells.append(f"{cell} ({chance[name]:.3f})" if cell != NOTHING and name in chance else cell)
            table.add_row(
                f"  with {pattern[1:-1].replace('-', ' and ')}" if pattern else kind,
                *cells,
                NOTHING if pattern else or_dash(str, facts.test_samples.get(kind)),
            )
    of_clients = any(name.endswith(OVER_CLIENTS) for values in facts.metrics.values() for name in values)
    print_section(
        console, f"Metrics: {facts.score_words}, after round {facts.metrics_round} (chance level in brackets)", table,
        "Of each client's own model: mean ± standard deviation over the clients." if of_clients else "",
    )  # fmt: skip


MAIN_METRICS = ("accuracy", "r@1")
"""Metrics of clients' own samples that the table shows; records hold more."""

_OF_GROUPS = {"all": "", "eligibility": "", "kind": "kind ", "device": "", "modality": "modality "}


def _print_client_metrics(console: Console, facts: RunSummary, rows: Sequence[ClientMetrics]) -> None:
    """The distribution over clients of their scores on their own held-out samples: a line per group and metric."""
    table = new_table(
        "clients", "scored", "metric", "mean", "by samples", "deviation", "worst tenth", "too small", left=(0, 2)
    )
    alike = {by for by in _OF_GROUPS if by != "all" and len([row for row in rows if row.by == by]) < 2}
    for row in rows:
        if row.by in alike:  # one group that is all clients
            continue
        shown = [*(name for name in MAIN_METRICS if name in row.metrics), *own_metrics(row.metrics)]
        for index, name in enumerate(shown or [""]):
            values = row.metrics[name].to_data() if name in row.metrics else {}
            cells = [score(values, part) for part in ("mean", "weighted_mean", "deviation", "worst_decile")]
            first = (f"{_OF_GROUPS[row.by]}{row.group}", f"{row.scored} of {row.clients}")
            last = str(row.too_small) if row.too_small else NOTHING
            title = title_of(name) if name else NOTHING
            table.add_row(*(("", "") if index else first), title, *cells, "" if index else last)
    without = next(row.without for row in rows if row.by == "all")
    caption = "Each client counts alike; by samples: weighed.  Too small: the memory can't hold the evaluation."
    if without:
        caption += f"  {without} clients hold no sample out."
    title = f"Clients' own held-out samples, after round {facts.client_metrics_round}"
    print_section(console, title, table, caption)


def _print_compared(console: Console, compared: RunComparison) -> None:
    rows = compared.rows
    for start in range(0, len(rows), MOST_COLUMNS):
        table = _compared_table(rows[start : start + MOST_COLUMNS], compared.split)
        print_section(console, "Comparison of the runs", table, compared.scores and f"Scores: {compared.scores}.")
    updates = {row.label: row.updates for row in rows}
    if compared.gained is UNSET:
        return
    reference = compared.reference
    for label, gained in compared.gained.items():
        if gained.clients:
            console.print(
                Text(
                    f"{label} admits {gained.clients} of {gained.of_clients} clients that {reference} "
                    f"never admits, with {percent(gained.samples / max(gained.of_samples, 1))} of the "
                    f"samples; {gained.took_part} of them took part and sent {gained.updates} of "
                    f"{updates[label]} updates."
                )
            )
        else:
            console.print(Text(f"{label} admits no additional clients compared with {reference}."))
    console.print()


def _compared_table(rows: Sequence[RunRow], split: str) -> Table:
    table = new_table("", *(row.label for row in rows))

    def add(name: str, cell: Any) -> None:
        table.add_row(name, *(cell(row) for row in rows))

    kinds = list(dict.fromkeys(kind for row in rows for kind in row.clients))
    eligible: tuple[tuple[str, Callable[[RunRow], Mapping[str, int]]], ...] = (
        ("at the hardest stage", lambda row: row.eligible_at_hardest_stage), ("ever", lambda row: row.eligible_ever)
    )  # fmt: skip
    for title, of in eligible:
        table.add_row(Text(f"eligible {title}", style="bold"))
        for kind in kinds:
            add(f"  {kind}", lambda row, of=of, kind=kind: f"{of(row).get(kind, 0)} of {row.clients.get(kind, 0)}")
    table.add_row(Text("took part", style="bold"))
    add("  clients", lambda row: percent(row.took_part_share))
    add("  samples", lambda row: percent(row.took_part_samples_share))
    for name in dict.fromkeys(name for row in rows for name in row.devices):

        def took_part(row: RunRow, name: str = name) -> str:
            device = row.devices.get(name)
            return f"{device.took_part} of {device.clients}" if device else NOTHING

        add(f"  {name}", took_part)
    table.add_row(Text("peak memory", style="bold"))
    for kind in kinds:
        add(f"  {kind}", lambda row, kind=kind: or_dash(units.show_bytes, row.peak_memory_bytes.get(kind)))
    table.add_row(Text("cost", style="bold"))
    add("  traffic per client-round", lambda row: or_dash(units.show_bytes, row.bytes_per_client_round))
    add("  energy per client-round", lambda row: or_dash(units.show_joules, row.energy_joules_per_client_round))
    add("  traffic, all rounds", lambda row: units.show_bytes(row.total_bytes))
    add("  computation, all rounds", lambda row: units.show_flops(row.flops))
    add("  virtual time", lambda row: units.show_seconds(row.virtual_seconds))
    table.add_row(Text(f"learned, on {split} (chance)", style="bold"))
    for kind in kinds:
        for name in shown_metrics(name for row in rows for name in row.metrics.get(kind, {})):
            chance = next((row.chance[kind][name] for row in rows if name in row.chance.get(kind, {})), None)
            in_brackets = f" ({chance:.3f})" if chance is not None else ""
            add(
                f"  {kind} {title_of(name)}{in_brackets}",
                lambda row, kind=kind, name=name: score(row.metrics.get(kind, {}), name),
            )
    return table


# --- the rules of conservation ----------------------------------------------------------------------------------------


def print_verified(result: Verified, console: Console | None = None) -> None:
    """Print a table of the checked rules for each run, and the first record that breaks each broken rule."""
    console = console or screen()
    for label, run in result.runs.items():
        table = new_table("rule", "records", "broken", "", left=(0, 3))
        for check in run.checks:
            records = f"{check.records:,}" if check.records else NOTHING
            violations = f"{check.broken:,}" if check.records else NOTHING
            note = f" ({check.note})" if check.note else ""
            table.add_row(check.name, records, violations, check.says + note)
        broken = [check for check in run.checks if check.broken]
        so_far = "" if run.finished else " so far"
        verdict = "every rule holds" if not broken else f"{len(broken)} of {len(run.checks)} rules are broken"
        print_section(console, f"{label}: {run.rounds} rounds{so_far}, {verdict}", table)
        for check in broken:
            first = check.first
            assert first is not None
            values = ", ".join(f"{name} {_format_value(value)}" for name, value in first.values.items())
            console.print(Text(f"{check.name}: {run.folder}/{first.where}: {values}"), soft_wrap=True)
        if broken:
            console.print()


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_format_value(item)}" for name, item in value.items()) + "}"
    return f"{value!r}" if isinstance(value, float) else str(value)
