"""Predictions beside published measurements: how far off they are, by device and source, and the table of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from edgefl import units
from edgefl.drawing.text_tables import NOTHING, new_table, or_dash, percent, print_section, screen
from edgefl.records.record import UNSET
from tools.published_steps.answer import Agreement, Estimate, PublishedAgreement, PublishedGroup, PublishedRow

_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("Seconds of a training step", units.show_seconds),
    "power": ("Power", units.show_watts),
    "joules": ("Joules of a training step", units.show_joules),
    "peak_memory": ("Peak memory", units.show_bytes),
    "energy": ("Energy of an epoch", units.show_joules),
}
_UNSEEN = {
    "model": "these models on the device", "device": "the device", "source": "the source",
    "class": "the class of its processor",
}  # fmt: skip


def print_published(result: PublishedAgreement, console: Console | None = None, *, full: bool = False) -> None:
    """Print a result of ``validate_devices``, with ``full`` every row of seconds, watts and joules."""
    console = console or screen()
    for quantity, (title, show) in _QUANTITIES.items():
        mine = [row for row in result.rows if row.quantity == quantity]
        if mine and (full or quantity in ("peak_memory", "energy")):
            _print_rows(console, title, mine, show)
    for row in result.rows:
        if row.reason:
            console.print(Text(f"not predicted: {row.device}, {row.model}: {row.reason}"), soft_wrap=True)
    for title, groups, unseen in (
        ("Seconds by device: median error", result.by_device, "without the device"),
        ("Seconds by source: median error", result.by_source, "without the source"),
    ):
        if groups:
            _print_groups(console, title, groups, unseen)
    _print_agreement(console, result)
    if full:
        console.print(Text("Sources", style="bold"))
        for title, url in dict.fromkeys((row.source.title, row.source.url) for row in result.rows):
            console.print(Text(f"{title}\n  {url}" if url else title), soft_wrap=True)
        console.print()


def _print_agreement(console: Console, result: PublishedAgreement) -> None:
    table = new_table("the fit hasn't seen", "rows", "devices", "median error", "within 1.5x", "worst", "tau")

    def add(words: str, of: Agreement) -> None:
        order = NOTHING if of.tau is None else _estimate(of.tau, "{:.2f}".format)
        table.add_row(
            words, str(of.rows), str(of.devices), _estimate(of.median_error, percent),
            _estimate(of.within_factor, percent), f"{of.worst_factor:.1f}x", order,
        )  # fmt: skip

    for question in result.questions:
        add(_UNSEEN[question.unseen], question)
    if result.joules is not UNSET:
        add("the device: joules", result.joules)
    if result.shipped is not UNSET:
        add("(as shipped: fitted to these rows)", result.shipped)
    print_section(
        console, "Seconds of a step, predicted over measured", table,
        "Median of |predicted / measured - 1|, share of rows within a factor of 1.5, Kendall's tau-b of the order; in "
        "brackets what holds 95 % of the draws of a bootstrap over (device, source).",
    )  # fmt: skip


def _estimate(one: Estimate, show: Callable[[float], str]) -> str:
    if one.low is None or one.high is None:
        return show(one.value)
    low, high = (show(each).removesuffix(" %") for each in (one.low, one.high))
    return f"{show(one.value)} [{low}..{high}]"


def _print_groups(console: Console, title: str, groups: Sequence[PublishedGroup], unseen: str) -> None:
    table = new_table(title.split()[2].rstrip(":"), "rows", "as shipped", "other half of models", unseen)
    for one in groups:
        table.add_row(
            one.name.removeprefix("https://"), str(one.rows), percent(one.shipped_error),
            or_dash(percent, one.unseen_model_error), or_dash(percent, one.unseen_error),
        )  # fmt: skip
    print_section(console, title, table)


def _print_rows(console: Console, title: str, rows: Sequence[PublishedRow], show: Callable[[float], str]) -> None:
    table = new_table(
        "device", "model", "batch", "measured", "shipped", "ratio", "unseen", "ratio", "half", left=(0, 1, 8)
    )
    for row in rows:
        model = row.model + ("" if row.trained == "all" else ", last layer")
        precision = "" if row.precision == "float32" else f", {row.precision}"
        unseen = None if row.foretold is None else row.foretold.unseen_model
        table.add_row(
            row.device, model + precision, str(row.batch), show(row.measured), or_dash(show, row.predicted),
            or_dash("{:.2f}".format, row.ratio), or_dash(show, unseen),
            or_dash("{:.2f}".format, unseen and unseen / row.measured), row.half,
        )  # fmt: skip
    note = "Ratio: predicted / measured. Shipped: fitted to these rows, too; unseen: by a fit to the other half."
    print_section(console, title, table, note)
