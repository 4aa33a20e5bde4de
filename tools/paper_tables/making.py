"""Make the tables and figures of docs/evidence/papers again, and compare them with those committed."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl.drawing.text_tables import csv_text
from edgefl.errors import EdgeflError, RunError, UnknownName
from edgefl.files import read_regular
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.progress import OnProgress, silent
from tools.paper_tables.answer import MadePage, PaperDifference, PaperFigure, PaperPage, PaperPages, Papers, PaperTable
from tools.paper_tables.page_tables import Committed, PageTable, committed_tables, differences, pages_folder

if TYPE_CHECKING:
    from tools.paper_tables.profiles import Profiles

RESULT = "papers.json"
"""The file in the output folder with the result; its presence says that the folder is this command's."""
DIFFERENCES = "differences.csv"
EQUAL, DIFFERS, SKIPPED = "equal", "differs", "not regenerated"
"""What is said of a table."""


def papers(
    names: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] = "runs/papers",
    on_progress: OnProgress = silent,
) -> Papers:
    """Make the tables and figures of pages of docs/evidence/papers again, and compare them with the committed ones.

    Figures of publications are copied.  Each page gets a folder with its tables as Markdown and CSV, and its figures.
    A repeated command goes on where an interrupted one was.

    Args:
        names: Pages, such as ``"lw-fedmml"``; none: all.
        out: A folder that is new, empty, or of an earlier call.
        on_progress: Called with the name of an event and its facts.

    Returns:
        The pages with their tables and figures, and whether no table that was made differs and no page failed.

    Raises:
        UnknownName: There is no such page.
        RunError: The folder holds something else, or can't be written.
    """
    from tools.paper_tables.profiles import Profiles  # here, since pages are listed without torch

    chosen = pages_of(tuple(names))
    folder = Path(out)
    _prepare(folder)
    began = time.monotonic()
    profiles = Profiles(on_progress)
    pages: list[MadePage] = []
    for index, page in enumerate(chosen):
        on_progress("combination", {"label": page.page, "index": index, "of": len(chosen)})
        pages.append(_make_page(page, folder / page.page, profiles))
        replace_file(folder / RESULT, _json(_result(pages, folder, began, finished=False).to_data()))
    result = _result(pages, folder, began, finished=True)
    replace_file(folder / DIFFERENCES, _differences_csv(result).encode())
    replace_file(folder / RESULT, _json(result.to_data()))
    return result


def _prepare(folder: Path) -> None:
    """Make the folder, or raise RunError if it holds anything but an earlier result."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; the tables need a folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(path.name for path in folder.iterdir())
    if others and RESULT not in others:
        raise RunError(f"{folder} already holds files ({others[0]}, ...); choose another folder")
    if RESULT in others:
        try:
            known = json.loads(read_regular(folder / RESULT))
            ours = isinstance(known, Mapping) and {"pages", "counts"} <= known.keys()
        except (OSError, ValueError, RecursionError):
            ours = False
        if not ours:
            raise RunError(f"{folder / RESULT} isn't a result of tools/papers.py; choose another folder")
    else:
        replace_file(folder / RESULT, _json({"pages": [], "counts": {}, "finished": False}))


# --- a page ----------------------------------------------------------------------------------------------------------


def _make_page(page: Page, folder: Path, profiles: Profiles) -> MadePage:
    """The result of one page; ``error`` says why none of its tables could be made."""
    with writing(folder):
        folder.mkdir(exist_ok=True)
    committed = committed_tables((pages_folder() / f"{page.page}.md").read_text(encoding="utf-8"))
    failed: str | None = None
    made: list[PageTable] = []
    drawn: list[Path] = []
    try:
        made = page.module.tables(profiles)
        if page.figures:
            drawn = page.module.figures(profiles, folder)
    except RunError:
        raise  # the folder can't be written: the other pages' couldn't either
    except EdgeflError as error:
        failed = str(error)
    tables = [compare_table(table, old, failed or "written by hand") for table, old in pair_tables(made, committed)]
    _write(folder, page, made)
    figures = [PaperFigure(file=str(path), differing_pixels=differing_pixels(path)) for path in drawn]
    return MadePage(page=page.page, tables=tables, figures=figures, error=failed)


def pair_tables(
    made: Sequence[PageTable], committed: Sequence[Committed]
) -> Iterator[tuple[PageTable | None, Committed | None]]:
    """Tables and those committed, in the page's order.

    Under a title with as many tables as were made the first belongs to the first, and so on; under another title the
    tables with the same header belong together.
    """
    left = list(made)
    for old in committed:
        ours = [table for table in made if table.heading == old.heading]
        theirs = [table for table in committed if table.heading == old.heading]
        table: PageTable | None
        if len(ours) == len(theirs):
            found: PageTable | None = ours[theirs.index(old)]
        else:
            found = next((table for table in left if (table.heading, table.header) == (old.heading, old.header)), None)
        if found is not None:
            left.remove(found)
        yield found, old
    for table in left:
        yield table, None


def compare_table(table: PageTable | None, old: Committed | None, skipped: str) -> PaperTable:
    """A table beside the committed one: its status, cells and differences; ``skipped`` says why it wasn't made."""
    if table is None:
        assert old is not None
        return PaperTable(
            table=old.header[0] or old.heading, heading=old.heading, status=SKIPPED, reason=skipped, line=old.line,
            header=old.header, rows=[], published=[], differences=[],
        )  # fmt: skip
    found = list(differences(table, old)) if old else []
    status = DIFFERS if found or not old else EQUAL
    return PaperTable(
        table=table.name, heading=table.heading, status=status,
        reason=None if old else "the page has no such table", line=old.line if old else None, header=table.header,
        rows=[[str(cell) for cell in row] for row in table.rows], published=table.copied_cells, differences=found,
    )  # fmt: skip


def differing_pixels(path: Path) -> float | None:
    """The share of a figure's pixels that aren't the committed one's; None if sizes differ or there is none."""
    import numpy as np
    from PIL import Image

    committed = pages_folder() / path.name
    if not committed.is_file():
        return None
    with Image.open(committed) as old, Image.open(path) as now:
        if old.size != now.size:
            return None
        return float((np.asarray(old.convert("RGB")) != np.asarray(now.convert("RGB"))).any(axis=-1).mean())


# --- files -----------------------------------------------------------------------------------------------------------


def _write(folder: Path, page: Page, made: Sequence[PageTable]) -> None:
    if not made:
        return
    lines = [f"# {page.what}\n"]
    for table in made:
        replace_file(folder / f"{table.name}.csv", table.csv().encode())
        title = f"## {table.heading}: {table.name}\n" if table.heading else f"## {table.name}\n"
        note = copied_cells_note(table)
        lines += [title, table.markdown(), *([note + "\n"] if note else [])]
    replace_file(folder / "tables.md", "\n".join(lines).encode())


def copied_cells_note(table: PageTable) -> str:
    """Which cells are a publication's: ``Published figures, copied: row traffic, MiB: published.``"""
    cells = table.copied_cells
    if not cells:
        return ""
    rows = Counter(cell.row for cell in cells)
    columns = Counter(cell.column for cell in cells)
    by_row = len(rows) <= len(columns)
    names = list(dict.fromkeys(rows if by_row else columns))
    word = ("row" if by_row else "column") + ("s" if len(names) > 1 else "")
    quoted = "; ".join(f'"{name}"' for name in names)
    return f"Published figures, copied: {word} {quoted}."


def _result(pages: Sequence[MadePage], folder: Path, began: float, *, finished: bool) -> Papers:
    counts = Counter(table.status for page in pages for table in page.tables)
    return Papers(
        output=str(folder), finished=finished, seconds=round(time.monotonic() - began, 1), pages=pages,
        counts={status: counts[status] for status in (EQUAL, DIFFERS, SKIPPED)},
        equal=not counts[DIFFERS] and not any(page.error for page in pages),
    )  # fmt: skip


def all_differences(result: Papers) -> Iterator[tuple[str, str, PaperDifference]]:
    """Every cell that differs, after its page and its table."""
    for page in result.pages:
        for table in page.tables:
            for each in table.differences:
                yield page.page, table.table, each


def _differences_csv(result: Papers) -> str:
    fields = ("page", "table", "row", "column", "committed", "now")
    rows = [{"page": page, "table": table, **each.to_data()} for page, table, each in all_differences(result)]
    return csv_text(rows, fields)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


class Page(PaperPage):
    """A page of docs/evidence/papers, made again by the module of its name in this package."""

    @property
    def module(self) -> Any:
        """The module with the page's ``tables``, imported on first use."""
        return import_module(f"tools.paper_tables.{self.page.replace('-', '_')}")


PAGES = {
    page.page: page
    for page in (
        Page(page="fedcola-colayer", what="FedCola's co-layer downloads", tables=1, minutes=1),
        Page(page="mcfl-resources", what="FLOPs and bytes of a round", tables=2, minutes=1),
        Page(page="pmcmfl", what="PmcmFL's prototypes, memory", tables=5, minutes=5),
        Page(page="lw-fedmml", what="LW-FedMML's three schedules", tables=8, figures=2, minutes=5),
        Page(page="fedcola-layerwise", what="FedCola layer by layer", tables=4, figures=1, minutes=10),
        Page(page="estimates", what="memory that others measured", tables=8, minutes=13),
    )
}


def pages_of(names: tuple[str, ...]) -> list[Page]:
    """The pages of these names, all for none.  Raises UnknownName."""
    for name in names:
        if name not in PAGES:
            raise UnknownName("page of docs/evidence/papers", name, PAGES)
    return [PAGES[name] for name in dict.fromkeys(names or PAGES)]


def list_papers() -> PaperPages:
    """The pages, what is on each, and about how long it takes."""
    return PaperPages(pages=list(PAGES.values()))
