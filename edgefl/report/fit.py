"""What ``edgefl fit`` looks like."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.report.console import NOTHING, Facts, new_table, or_dash, print_section, screen, stage_of

SHOWN = {
    "memory": ("memory", units.show_bytes),
    "flops": ("computation", units.show_flops),
    "bytes": ("traffic", units.show_bytes),
    "seconds": ("time", units.show_seconds),
    "joules": ("energy", units.show_joules),
}


def print_fit(found: Facts, console: Console | None = None) -> None:
    """What ``edgefl.fit`` found, kind after kind."""
    console = console or screen()
    head = f"{found['scenario']} on {found['device']} over {found['link']}"
    console.print(Text(f"=== {head} ===", style="bold"))
    console.print()
    table = new_table("budget", "allowed", "", left=(0, 2))
    for name, each in found["budgets"].items():
        title, show = SHOWN[name]
        table.add_row(title, "unlimited" if each["allowed"] is None else show(each["allowed"]),
                      "" if each["allowed"] is None else each["source"])  # fmt: skip
    print_section(console, "What a round may use", table)
    for one in found["kinds"].values():
        _print_kind(console, found, one)


def _print_kind(console: Console, found: Facts, one: Facts) -> None:
    head = f"{one['kind']} clients, of which the largest has {one['samples']:,} samples: "
    if not one["rounds"]:
        console.print(Text(f"{head}the method never asks them\n", style="bold"))
        return
    now = one["as_it_stands"]
    if one["fits"]:
        _print_stages(console, head + "fit as it stands", now["stages"])
        return
    _print_stages(console, head + "don't fit as it stands", now["stages"])
    if one["solutions"]:
        stopped = "" if one["complete"] else ", as far as was looked"
        _print_answers(console, f"What lets them take part, least first{stopped}", one["solutions"], found["sets"])
    else:
        _print_nothing(console, found, one)
    _print_search(console, one)


def _print_stages(console: Console, title: str, stages: Sequence[Facts]) -> None:
    table = new_table("stage", "rounds", "fits", *(name for name, _ in SHOWN.values()), "tightest", left=(2, 8))
    for row in stages:
        table.add_row(
            stage_of(row), str(row["rounds"]), "yes" if row["eligible"] else "no",
            *(show(row["costs"][name]) for name, (_, show) in SHOWN.items()), _tightest(row),
        )  # fmt: skip
    print_section(console, title, table)


def _tightest(row: Facts) -> str:
    """The binding budget with its margin."""
    if row["binding"] is None:
        return NOTHING
    title, show = SHOWN[row["binding"]]
    margin = row["margins"][row["binding"]]
    return f"{title}, {show(abs(margin))} {'over' if margin < 0 else 'left'}"


def _print_answers(console: Console, title: str, answers: Sequence[Facts], always: Sequence[str]) -> None:
    table = new_table("", "change", "of", "memory", "traffic", "time", "energy", "tightest", left=(1, 2, 7))
    for column in (1, 2):
        table.columns[column].no_wrap = True  # a change stands beside what it is of
    for number, one in enumerate(answers, start=1):
        changes = one["changes"] or [{"what": "nothing", "changes": ""}]
        table.add_row(
            str(number), "\n".join(c["what"] for c in changes), "\n".join(c["changes"] for c in changes),
            units.show_bytes(one["peak_memory_bytes"]), units.show_bytes(one["costs"]["bytes"]),
            *(or_dash("x {:.2f}".format, one[f"{name}_ratio"]) for name in ("seconds", "joules")), _tightest(one),
        )  # fmt: skip
    print_section(
        console, title, table,
        "Memory and traffic at worst; time and energy of a mean round, against the scenario as it stands.",
    )  # fmt: skip
    for number, one in enumerate(answers, start=1):
        sets = " ".join(f"--set {shlex.quote(text)}" for text in (*always, *one["sets"]))
        console.print(Text(f"{number}: {sets}"), soft_wrap=True)
    console.print()


def _print_nothing(console: Console, found: Facts, one: Facts) -> None:
    unmet = [f"{SHOWN[n][0]} of {SHOWN[n][1](found['budgets'][n]['allowed'])}" for n in one.get("unmet", ())]
    if unmet:
        console.print(Text(f"Nothing helps: no change meets {', nor '.join(unmet)}.\n"))
    elif one["complete"]:
        console.print(Text("Nothing helps: no combination meets all budgets at once.\n"))
    else:
        console.print(Text("Nothing found that helps, as far as was looked.\n"))
    if near := one.get("nearest"):
        _print_answers(console, f"Nearest, at {near['excess']:.3g} times what is allowed", [near], found["sets"])
        _print_stages(console, "With it", near["stages"])


def _print_search(console: Console, one: Facts) -> None:
    left = one["candidates"] - one["looked_at"]
    words = [f"{one['predictions']} works predicted", f"{one['looked_at']} of {one['candidates']} combinations decided"]
    if not one["complete"]:
        words.append("stopped by --most")
    elif left:
        words.append("--answers 0 decides all")
    if one["failed"]:
        first = one["failed"][0]
        words.append(f"{len(one['failed'])} can't be predicted, the first {' '.join(first['sets'])}: {first['error']}")
    console.print(Text("; ".join(words) + "\n"))
