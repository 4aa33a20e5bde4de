"""What ``edgefl analyse`` found, as tables and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from edgefl.report.console import NOTHING, TITLES, Facts, new_table, or_dash, print_section, screen
from edgefl.report.figures import FIGURE_FORMS, KIND_COLOURS, MARKS
from edgefl.runs.durable import writing

__all__ = ["ANALYSES", "FIGURE_FORMS", "draw_analysis", "print_analysis"]

ANALYSES = ("shapley", "gradients", "drift", "matching")
"""What there is to analyse."""
MEASURES = {"shapley": "Shapley", "lost": "lost", "alone": "alone"}


def _number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.2f}"


def _angle(value: float) -> str:
    return f"{value:+.2f}" if round(abs(value), 2) else "0.00"


def _signed(value: float, spread: float | None) -> str:
    # what rounds to nothing has no sign
    text = f"{value:+.3f}" if round(abs(value), 3) else "0.000"
    return text if spread is None else f"{text} ±{spread:.3f}"


def print_analysis(found: Facts, console: Console | None = None) -> None:
    """Everything that was analysed."""
    console = console or screen()
    console.print(Text(f"=== {found['scenario']}, {found['method']} ===", style="bold"))
    console.print(Text(f"the run at {found['run']}\n"), soft_wrap=True)
    if "shapley" in found:
        _print_values(console, found["shapley"])
    if "gradients" in found:
        _print_gradients(console, found["gradients"]["rows"])
    if "drift" in found:
        _print_drift(console, found["drift"])
    if "matching" in found:
        _print_matching(console, found["matching"])
    for name, why in found["skipped"].items():
        console.print(Text(f"no {name}: {why}"))


def _metric(row: Facts) -> str:
    whose = row["kind"] if len(row["kinds"]) == 1 else " = ".join(row["kinds"])
    return f"{whose} {TITLES.get(row['metric'], row['metric'])}"


def _print_values(console: Console, found: Facts) -> None:
    players = found["players"]
    table = new_table("metric", "nobody", "everybody", "", *players, left=(0, 3))
    for row in found["rows"]:
        ends = [f"{row['values'][name]:.3f}" for name in ("nobody", "everybody")]
        for place, (name, title) in enumerate(MEASURES.items()):
            head = [_metric(row), *ends] if place == 0 else ["", "", ""]
            worth = (row["players"][player] for player in players)
            table.add_row(*head, title, *(_signed(each[name], each[f"{name}_std"]) for each in worth))
    several = len(found["seeds"])
    print_section(
        console, "What each kind of clients is worth", table,
        "Shapley value: mean gain by a kind over all orders of joining; they add up to everybody less nobody.\n"
        "Lost without the kind: everybody less everybody else.  Alone: the kind by itself less nobody."
        + (f"\nMeans and standard deviations of {several} seeds." if several > 1 else ""),
    )  # fmt: skip


def _by_part(
    rows: Sequence[Facts], column: Callable[[Facts], str], show: Callable[[Facts], str]
) -> tuple[list[str], dict[tuple[str, str], dict[str, str]]]:
    """The columns there are, and what stands in them by tower and part."""
    columns = list(dict.fromkeys(map(column, rows)))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        lines.setdefault((row["tower"], row["part"]), {})[column(row)] = show(row)
    return columns, dict(
        sorted(lines.items(), key=lambda line: list(dict.fromkeys(r["tower"] for r in rows)).index(line[0][0]))
    )


def _print_parts(
    console: Console, title: str, rows: Sequence[Facts], column: Callable[[Facts], str], show: Callable[[Facts], str],
    note: str,
) -> None:  # fmt: skip
    columns, lines = _by_part(rows, column, show)
    table = new_table("tower", "part", *columns, left=(0, 1))
    tower = None
    for (own, part), cells in lines.items():
        table.add_row(own if own != tower else "", part, *(cells.get(name, NOTHING) for name in columns))
        tower = own
    print_section(console, title, table, note)


def _print_gradients(console: Console, rows: Sequence[Facts]) -> None:
    count = max((row["clients"] for row in rows), default=0)
    _print_parts(
        console, "Gradient norm (and as a share of the weights' norm)", rows, lambda row: row["kind"],
        lambda row: f"{_number(row['norm'])} ({or_dash(_number, row['relative'])})",
        f"Of the mean gradient over a local epoch at the final weights; mean over at most {count} clients of a kind.",
    )  # fmt: skip


def _pair(row: Facts) -> str:
    return " and\n".join(row["kinds"])


def _print_drift(console: Console, found: Facts) -> None:
    count = max((row["clients"] for row in found["within"]), default=0)
    _print_parts(
        console, "How far clients of a kind agree: consistency (and how far each moves)", found["within"],
        lambda row: row["kind"],
        lambda row: f"{or_dash(_share, row['consistency'])} ({or_dash(_number, row['moved'])})",
        "Consistency: norm of the mean update over the mean norm; 1 if all pull the same way, 1/sqrt(clients)\n"
        "if each goes its own.  Moves: norm of an update over that of the weights, in the last round's work.\n"
        f"At most {count} clients of a kind.",
    )  # fmt: skip
    if found["between"]:
        _print_parts(
            console, "How far kinds agree: cosine of mean updates (and distance of global models)", found["between"],
            _pair, lambda row: f"{or_dash(_angle, row['cosine'])} ({or_dash(_number, row['distance'])})",
            "Distance: norm of the difference over the mean of both norms.",
        )  # fmt: skip


def _print_matching(console: Console, found: Facts) -> None:
    places = list(found["rows"][0]["matched"]) if found["rows"] else []
    table = new_table("kind", "samples with", "completed by", *(f"top {k}" for k in places), "accuracy", left=range(3))
    last: tuple[str, str] = ("", "")
    rows = sorted(found["rows"], key=lambda row: _first(found["rows"], row))
    for row in rows:
        own = f"{row['inference']} (the run's)" if row["own"] else row["inference"]
        if row["pattern"] == _whole(row):  # complete samples are the same whatever completes others
            if not row["own"]:
                continue
            own = NOTHING
        head = (row["kind"], row["pattern"])
        table.add_row(
            row["kind"] if head[0] != last[0] else "", row["pattern"] if head != last else "", own,
            *(or_dash("{:.3f}".format, row["matched"][k]) for k in places), f"{row['accuracy']:.3f}",
        )  # fmt: skip
        last = head
    print_section(
        console, f"Matching on the {found['split']} split: how often the true class is among the best", table,
        "zero: zeros for the missing modality; oracle: the prototype of the true class, a bound.",
    )  # fmt: skip


def _whole(row: Facts) -> str:
    return str(row["kind"]) if "-" in row["kind"] else ""


def _first(rows: Sequence[Facts], row: Facts) -> int:
    """Where a kind's pattern is first met."""
    return next(i for i, r in enumerate(rows) if (r["kind"], r["pattern"]) == (row["kind"], row["pattern"]))


# --- figure ----------------------------------------------------------------------------------------------------------


def draw_analysis(found: Facts, path: Path) -> None:
    """A panel for each table: values as bars, blocks as lines by kind, matching as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[Callable[[Any], None]] = []
    if "shapley" in found:
        panels.append(lambda axes: _bars(axes, found["shapley"]))
    if "gradients" in found:
        rows = found["gradients"]["rows"]
        panels += _lines("gradient norm", rows, "norm", lambda row: str(row["kind"]), log=True)
    if "drift" in found:
        panels += _lines("consistency", found["drift"]["within"], "consistency", lambda row: str(row["kind"]), least=0)
        pairs = found["drift"]["between"]
        panels += _lines("cosine", pairs, "cosine", lambda row: " and ".join(row["kinds"]), least=-1)
    if "matching" in found:
        panels.append(lambda axes: _matched(axes, found["matching"]))
    columns = min(2, max(len(panels), 1))
    lines = -(-max(len(panels), 1) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.2 * lines), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(lines, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            panels[place](axes)
        else:
            axes.set_axis_off()
    with writing(path):
        figure.savefig(path)


def _bars(axes: Any, found: Facts) -> None:
    rows, players = found["rows"], found["players"]
    width = 0.8 / max(len(players), 1)
    for index, player in enumerate(players):
        at = [place + (index - (len(players) - 1) / 2) * width for place in range(len(rows))]
        values = [row["players"][player]["shapley"] for row in rows]
        spread = [row["players"][player]["shapley_std"] for row in rows]
        error = None if None in spread else spread
        axes.bar(at, values, width, yerr=error, label=player, color=KIND_COLOURS[index % len(KIND_COLOURS)])
    axes.set_xticks(range(len(rows)), [_metric(row).replace(" ", "\n") for row in rows], fontsize=7)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_title("Shapley value of each kind", fontsize=9)
    axes.legend(fontsize=7)
    axes.grid(axis="y", alpha=0.25)


def _lines(
    title: str,
    rows: Sequence[Facts],
    value: str,
    label: Callable[[Facts], str],
    *,
    log: bool = False,
    least: float | None = None,
) -> list[Callable[[Any], None]]:
    """A panel for each tower that has something to show in two parts or more, on an axis from ``least`` to 1."""
    labels = list(dict.fromkeys(map(label, rows)))

    def panel(tower: str) -> Callable[[Any], None]:
        mine = [row for row in rows if row["tower"] == tower]
        parts = list(dict.fromkeys(row["part"] for row in mine))

        def draw(axes: Any) -> None:
            for index, name in enumerate(labels):
                shown = [(parts.index(row["part"]), row[value]) for row in mine if label(row) == name]
                shown = [(place, number) for place, number in shown if number is not None]
                if shown:
                    axes.plot(*zip(*shown, strict=True), label=name, marker=MARKS[index % len(MARKS)], markersize=4,
                              color=KIND_COLOURS[index % len(KIND_COLOURS)])  # fmt: skip
            axes.set_xticks(range(len(parts)), [part or tower for part in parts], fontsize=7, rotation=30, ha="right")
            if log:
                axes.set_yscale("log")
            if least is not None:
                axes.set_ylim(least - 0.05, 1.05)
            axes.set_title(f"{title}, {tower}", fontsize=9)
            axes.grid(alpha=0.25)
            axes.legend(fontsize=7)

        return draw

    shown = {(row["tower"], row["part"]) for row in rows if row[value] is not None and (row[value] > 0 or not log)}
    towers = dict.fromkeys(row["tower"] for row in rows)
    return [panel(tower) for tower in towers if sum(own == tower for own, _ in shown) > 1]


def _matched(axes: Any, found: Facts) -> None:
    rows = [row for row in found["rows"] if row["pattern"] != _whole(row)]
    groups = list(dict.fromkeys((row["kind"], row["pattern"]) for row in rows))
    ways = list(dict.fromkeys(row["inference"] for row in rows))
    width = 0.8 / max(len(ways), 1)
    for index, way in enumerate(ways):
        shown = [(groups.index((r["kind"], r["pattern"])), r["accuracy"]) for r in rows if r["inference"] == way]
        at = [place + (index - (len(ways) - 1) / 2) * width for place, _ in shown]
        axes.bar(at, [number for _, number in shown], width, label=way, color=KIND_COLOURS[index % len(KIND_COLOURS)])
    axes.set_xticks(range(len(groups)), [f"{kind}\n{pattern} alone" for kind, pattern in groups], fontsize=7)
    axes.set_title("accuracy by what completes a sample", fontsize=9)
    axes.legend(fontsize=7)
    axes.grid(axis="y", alpha=0.25)
