"""The page ``evidence/papers/items.md``: what the five papers did, and the commands that run it."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from edgefl.records.reading import from_data
from tools.pages.markdown import capital, page, table
from tools.pages.measured import recorded
from tools.paper_tables.answer import MeasuredHours
from tools.paper_tables.items import Item, PaperItems, State, paper_items
from tools.paper_tables.published_tables import PrintedPaper, published, published_tables

HOURS = "papers"
"""The file of measured hours, without its ending."""
STATES: tuple[State, ...] = get_args(State)


def items_page() -> str:
    """Every item with its state and commands by paper, the counts, and the tables that can be trained."""
    papers = paper_items()
    counts = [(each.title, Counter(item.state for item in each.items.values())) for each in papers]
    total = sum((count for _, count in counts), Counter[State]())
    rows = [(title, *(str(count[state]) for state in STATES)) for title, count in [*counts, ("together", total)]]
    parts = [
        "This page lists every experiment, setting and figure of five papers, and the commands that run each from the "
        "root of a checkout. An item is *as printed* if edgefl runs it as the paper says, once the data are there. No "
        "published score was reproduced with them here.",
        table(("Paper", *map(capital, STATES)), rows, ("---", *["---:"] * len(STATES))),
        "In the commands, `DIR` is a folder with the [data sets](../../reference/data-sets.md). `BERT`, `BEIT3`, "
        "`CLIP`, `GLOVE` and `TOKENIZER` are files or folders of [published weights](../../guides/pre-trained.md). "
        "`edgefl` finds the data if the variable `EDGEFL_DATA` names `DIR`. "
        "[Reproduce a paper](../../guides/reproduce-a-paper.md) says what `tools/papers.py` prints.",
    ]
    hours = from_data(MeasuredHours, recorded(HOURS), HOURS)
    parts.append(
        f"Core hours are estimates for {hours.machine}, made by {hours.origin}. Rows that can't be priced without "
        f"their data aren't in them. So far {len(hours.tables)} of {len(published_tables())} tables were priced, and "
        "the others have a dash."
    )
    for each in papers:
        parts += [
            f"## {each.title}",
            _items(each),
            "Tables and figures that can be trained:",
            _tables(published(each.paper), hours),
        ]
    return page("Experiments of five papers", parts)


def _items(paper: PaperItems) -> str:
    rows = (
        (str(number), item.what, _state(item), "<br>".join(f"`{command}`" for command in item.run))
        for number, item in paper.items.items()
    )
    return table(("No.", "Experiment", "State", "Command"), rows)


def _state(item: Item) -> str:
    """The state with its reason, and the lines that would mend it."""
    if not item.why:
        return item.state
    return f"**{item.state}**: {item.why}" + (f" (about {item.lines} lines of edgefl)" if item.lines else "")


def _tables(paper: PrintedPaper, hours: MeasuredHours) -> str:
    """The paper's tables, with hours where they were measured."""
    head, rows = ["Name", "What it shows", "In the paper", "Scenario", "Rows"], []
    for name, each in paper.tables.items():
        row = [f"`{name}`", each.title, each.where, f"`{each.base}`", str(len(each.runnable))]
        of = hours.tables.get(name)
        row += ["–" if of is None else str(of.priced)]
        row += ["–" if of is None or of.core_hours is None else f"{of.core_hours:,g}"]
        rows.append(row)
    head += ["Priced", "Core hours"]
    return table(head, rows, ["---"] * 4 + ["---:"] * (len(head) - 4))
