"""What ``edgefl sweep`` found, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from edgefl import units
from edgefl.report.console import NOTHING, TITLES, Facts, counted, new_table, or_dash, percent, print_section, screen
from edgefl.report.facts import SHOWN_METRICS
from edgefl.report.sweep_figure import shown

LONG_LABEL = 14
"""Letters of a combination's label from which on it is broken at its commas."""
WIDEST_LABEL = 24
"""Letters of a label's line that are kept together."""
MOST_NAMED = 3
"""Names that are written out before the rest is counted."""
MOST_LISTED = 12
"""Lines of a table that grows with the square of the cells."""
IN_WORDS = {
    "schedule_bytes": "traffic of the schedule",
    "schedule_seconds": "time of the schedule",
    "schedule_energy_joules": "energy of the schedule",
    "eligible_share": "eligible share",
    "round_seconds": "time of a round",
}


def print_sweep(found: Facts, console: Console | None = None) -> None:
    """Everything that a sweep found, the cells first."""
    console = console or screen()
    rows = found["rows"]
    _print_cells(console, rows)
    _print_totals(console, rows)
    _print_excluded(console, rows)
    if any("metrics" in row for row in rows):
        _print_metrics(console, rows)
    _print_smallest(console, rows)
    if len(rows) > 1:
        _print_frontier(console, rows, found["frontier"])
    if "sensitivity" in found:
        _print_sensitivity(console, found["sensitivity"])


def _label(row: Facts) -> str:
    label: str = row["label"]
    return label if len(label) <= LONG_LABEL else label.replace(",", ",\n")


def _keep_labels(table: Table, rows: Sequence[Facts]) -> None:
    """Fold other columns before labels."""
    table.columns[0].no_wrap = max(len(part) for row in rows for part in _label(row).splitlines()) <= WIDEST_LABEL


def _print_cells(console: Console, rows: Sequence[Facts]) -> None:
    table = new_table(
        "", "eligible\never", "\nhardest", "samples\never", "classes\never", "refused by", "peak\nmemory",
        "round\ntime", "traffic", "energy", left=(0, 5),
    )  # fmt: skip
    _keep_labels(table, rows)
    for row in rows:
        moved = None if row["download_bytes"] is None else row["download_bytes"] + row["upload_bytes"]
        table.add_row(
            _label(row),
            percent(row["eligible_share_ever"]),
            percent(row["eligible_share_at_hardest_stage"]),
            percent(row["eligible_samples_share_ever"]),
            or_dash(percent, row["class_coverage_ever"]),
            counted(row["refused_by"]),
            units.show_bytes(row["peak_memory_bytes"]),
            or_dash(units.show_seconds, row["round_seconds"]),
            or_dash(units.show_bytes, moved),
            or_dash(units.show_joules, row["energy_joules"]),
        )
    print_section(
        console, "Who could take part, and what a round costs them", table,
        "Refused by: the binding budgets at the hardest stage.  Peak memory: of the largest client.  Round\n"
        "time: of the slowest eligible client.  Traffic and energy: means of an eligible client's round.",
    )  # fmt: skip


def _print_totals(console: Console, rows: Sequence[Facts]) -> None:
    table = new_table("", "rounds", "empty", "eligible", "client\nrounds", "time", "down", "up", "energy", "computing")
    _keep_labels(table, rows)
    for row in rows:
        table.add_row(
            _label(row),
            str(row["rounds"]),
            str(row["empty_rounds"]) if row["empty_rounds"] else NOTHING,
            percent(row["eligible_share"]),
            f"{row['schedule_client_rounds']:,.0f}",
            units.show_seconds(row["schedule_seconds"]),
            units.show_bytes(row["schedule_download_bytes"]),
            units.show_bytes(row["schedule_upload_bytes"]),
            units.show_joules(row["schedule_energy_joules"]),
            units.show_flops(row["schedule_flops"]),
        )
    print_section(
        console, "What the schedule adds up to", table,
        "Empty: rounds in which nobody can take part, which cost nothing.  Eligible: mean over the rounds.\n"
        "Client rounds: places that eligible clients fill.  Without the server's work, and without frozen\n"
        "copies that a client fetches anew.",
    )  # fmt: skip


def _print_excluded(console: Console, rows: Sequence[Facts]) -> None:
    """What leaves for good, and what is missing in the stage that fewest can take part in."""
    table = new_table("", "samples", "modalities", "classes", "at stage", "samples", "modalities", "classes",
                      left=(0, 2, 3, 6, 7))  # fmt: skip
    for row in rows:
        hardest = next(stage for stage in row["stages"] if stage["stage"] == row["hardest_stage"])
        if not hardest["excluded_samples"]:
            continue
        cells = []
        for one in (row, hardest):
            cells += [
                f"{one['excluded_samples']:,}",
                _named(one["lost_modalities"]),
                or_dash(_named, one["lost_classes"]),
            ]
        table.add_row(_label(row), *cells[:3], str(row["hardest_stage"]), *cells[3:])
    if table.row_count:
        print_section(
            console, "What leaves with the excluded clients: in every stage, and in the hardest one", table,
            "A modality or class has left where no eligible client holds any of it.  By stage and kind: --json.",
        )  # fmt: skip


def _named(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{len(names)}: {', '.join(names[: MOST_NAMED - 1])}, ..."
    return ", ".join(names) or NOTHING


def _print_metrics(console: Console, rows: Sequence[Facts]) -> None:
    columns = {
        (kind, name): f"{kind}\n{TITLES[name]}"
        for row in rows
        for kind, values in row.get("metrics", {}).items()
        for name in SHOWN_METRICS
        if name in values
    }
    table = new_table("", "updates", "took part", *columns.values())
    for row in rows:
        if "metrics" not in row:
            continue
        scores = [row["metrics"].get(kind, {}).get(name) for kind, name in columns]
        table.add_row(
            _label(row), str(row["trained"]["updates"]), str(row["trained"]["clients_that_took_part"]),
            *(or_dash("{:.3f}".format, score) for score in scores),
        )  # fmt: skip
    print_section(console, "What was learned", table)


def _print_smallest(console: Console, rows: Sequence[Facts]) -> None:
    """Once for all cells in which it comes out the same."""
    groups: dict[str, list[Facts]] = {}
    for row in rows:
        found = [(s["stage"], [(k, v["smallest_device"]) for k, v in s["kinds"].items()]) for s in row["stages"]]
        groups.setdefault(repr(found), []).append(row)
    table = new_table("", "stage", "kind", "smallest device", "peak", "to spare", "round", "energy", left=(0, 2, 3))
    for alike in list(groups.values())[:MOST_LISTED]:
        label = _label(alike[0]) + (f"\nand {len(alike) - 1} more" if len(alike) > 1 else "")
        for kind in alike[0]["stages"][0]["kinds"]:
            for first, last, one in _stretches(alike[0]["stages"], kind):
                numbers = str(first) if first == last else f"{first}-{last}"
                table.add_row(
                    label, numbers, kind, one["device"] or "none of the library",
                    units.show_bytes(one["peak_memory_bytes"]),
                    or_dash(units.show_bytes, one.get("memory_margin_bytes")),
                    or_dash(units.show_seconds, one.get("round_seconds")),
                    or_dash(units.show_joules, one.get("energy_joules")),
                )  # fmt: skip
                label = ""
    more = len(groups) - MOST_LISTED
    print_section(
        console, "The smallest device that can take part", table,
        "By its own memory less its runtime's overhead, then by deadline and budgets of time and energy, over\n"
        "the fleet's most common link; the kind's largest round decides.  Of stages with the same device the\n"
        "highest peak is shown.  Every stage, and what the next smaller device lacks: --json."
        + (f"\n{more} more cells: --json." if more > 0 else ""),
    )  # fmt: skip


def _stretches(stages: Sequence[Facts], kind: str) -> list[tuple[int, int, Facts]]:
    """Stages in which the kind's smallest device is the same: the first, the last, and the one that peaks highest."""
    found: list[tuple[int, int, Facts]] = []
    for stage in stages:
        one = stage["kinds"][kind]["smallest_device"]
        if one is None:
            continue
        if found and found[-1][1] == stage["stage"] - 1 and found[-1][2]["device"] == one["device"]:
            first, _, known = found.pop()
            higher = one if one["peak_memory_bytes"] > known["peak_memory_bytes"] else known
            found.append((first, stage["stage"], higher))
        else:
            found.append((stage["stage"], stage["stage"], one))
    return found


def _print_frontier(console: Console, rows: Sequence[Facts], frontier: Facts) -> None:
    places = {row["label"]: row for row in rows}
    for method, found in frontier.items():
        table = new_table("against", "", "eligible", "", "dominated by it", left=(0, 1, 4))
        table.columns[1].no_wrap = True
        for cost, one in found.items():
            if cost == "nobody":
                continue
            name = IN_WORDS[cost].partition(" ")[0]
            level: dict[tuple[float, float], list[str]] = {}
            for point in one["frontier"]:
                level.setdefault((point["eligible_share"], point[cost]), []).append(point["label"])
            for (share, amount), labels in level.items():
                beaten = [label for label, by in one["dominated"].items() if by in labels]
                alike = f"\nand {len(labels) - 1} level with it" if len(labels) > 1 else ""
                table.add_row(
                    name, _label(places[labels[0]]) + alike, percent(share), shown(cost)(amount), _folded(beaten),
                )  # fmt: skip
                name = ""
        nobody = found["nobody"]
        note = f"Nobody can take part:\n{_folded(nobody)}" if nobody else ""
        print_section(
            console,
            f"Frontier of {method}: more clients only for more traffic, time or energy of the schedule",
            table,
            note,
        )


def _folded(labels: Sequence[str]) -> str:
    if len(labels) > MOST_LISTED:
        return "\n".join([*labels[:MOST_NAMED], f"and {len(labels) - MOST_NAMED} more"])
    return "\n".join(labels) or NOTHING


def _print_sensitivity(console: Console, found: Facts) -> None:
    factor = f"{found['factor']:g}"
    table = new_table(
        "order of the cells by", "survives", "pairs that\nflip", "lowest tau\none or all", "by", "drawn:\nlowest tau",
        "same\norder", "same\nbest", left=(0, 4),
    )  # fmt: skip
    for name, one in found["figures"].items():
        table.add_row(
            IN_WORDS[name], "yes" if one["survives"] else "no", f"{one['pairs_that_flip']} of {one['pairs']}",
            or_dash("{:.2f}".format, one["lowest_tau"]), or_dash(_change, one["lowest_tau_by"]),
            or_dash("{:.2f}".format, one["drawn_lowest_tau"]), percent(one["drawn_unchanged_share"]),
            percent(one["drawn_same_best_share"]),
        )  # fmt: skip
    print_section(
        console, f"If every device and link number were wrong by a factor of {factor}", table,
        f"Each number times and over {factor}, in all profiles and in each alone, then all at once; and drawn\n"
        f"{found['draws']} times, each number off by its own factor, up to {factor}.  tau: Kendall's tau-b with\n"
        "the order as it stands.",
    )  # fmt: skip
    if not found["flips"]:
        return
    listed = new_table("by", "better", "than", "no longer with", left=range(4))
    for flip in found["flips"][:MOST_LISTED]:
        listed.add_row(
            IN_WORDS[flip["figure"]], flip["better"].replace(",", ",\n"), flip["worse"].replace(",", ",\n"),
            "; ".join(map(_change, flip["by"][:MOST_NAMED]))
            + (f"; {len(flip['by']) - MOST_NAMED} more" if len(flip["by"]) > MOST_NAMED else ""),
        )  # fmt: skip
    more = len(found["flips"]) - MOST_LISTED
    print_section(console, "Which number flips which pair", listed, f"{more} more: --json." if more > 0 else "")


def _change(change: Facts) -> str:
    where = "" if change["where"] == "everywhere" else f" of {change['where']}"
    if change["number"].startswith("all "):
        return f"{change['number']} by {change['factor']:g}"
    times = change["factor"]
    return f"{change['number']}{where} {f'x {times:g}' if times > 1 else f'/ {1 / times:g}'}"
