"""Write the pages, tables and pictures that are made from the code, and the outputs that pages show.

    python tools/pages.py                     all that is made from the code, but for the slow ones
    python tools/pages.py FILE ...            these, for example docs/reference/errors.md; a slow one is made only so
    python tools/pages.py --check [FILE ...]  writes nothing, says which is out of date, and ends with 1 if one is
    python tools/pages.py --figures           the measured figures that pages may include, by name
    python tools/pages.py --outputs FILE ...  runs the commands of these pages, for example README.md, and writes what
                                              they print and the pictures that they make (tools/pages/running.py)

They are committed, so that they can be read without building the site; quick tests check them, and the slow ones
outputs that take long.  What is made is one line of ``PAGES``, and the pages of a folder that holds no others are one
line too.  Its function gives the whole file, or the blocks of a
page written by hand, each by the name that stands in the page's markers, ``<!-- made: NAME -->`` and
``<!-- /made -->``.  A measured figure in a sentence of any page is a span (tools/pages/measured.py), and is filled too.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as for the tests, before torch is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.pages.answers import JSON_PAGES, answer_pages
from tools.pages.bibliography import bibliography_page
from tools.pages.clock import clock_blocks
from tools.pages.commands import commands_page
from tools.pages.data_sets import data_set_blocks
from tools.pages.devices import device_blocks
from tools.pages.errors import errors_page
from tools.pages.evidence import (
    emulation_blocks,
    gpu_blocks,
    joules_blocks,
    memory_blocks,
    other_program_blocks,
    second_runtime_blocks,
    seconds_blocks,
)
from tools.pages.fine_tune import fine_tune_blocks
from tools.pages.fine_tune_links import link_blocks
from tools.pages.front_picture import dark_front_picture, front_facts, front_picture, same_facts
from tools.pages.items import items_page
from tools.pages.measured import figures, files_with_figures, with_figures
from tools.pages.methods import method_blocks
from tools.pages.orderings import open_question_blocks, ordering_blocks
from tools.pages.outputs import renew
from tools.pages.protocol import protocol_blocks
from tools.pages.python import python_page
from tools.pages.records import record_blocks
from tools.pages.refusals import refusal_blocks
from tools.pages.rooms import dark_rooms_drawing, rooms_drawing
from tools.pages.running import PAGES as OF_COMMANDS
from tools.pages.running import ROOT
from tools.pages.scenario import SCENARIO_PAGES, scenario_pages, scenario_schema
from tools.pages.scenarios import quickstart_block, scenarios_page
from tools.pages.towers import tower_blocks
from tools.pages.which_schedule_wins import answer_tables, dark_staircase, light_staircase, same_picture

BLOCK = re.compile(r"(<!-- made: ([\w./ -]+) -->\n\n)(.*?)(\n\n<!-- /made -->\n)", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A file and what makes it: its text, or the texts of its blocks by their names.

    ``same`` says whether a file is up to date, given its text and the text that it should have.
    """

    file: str
    make: Callable[[], str | Mapping[str, str]]
    slow: bool = False
    same: Callable[[str, str], bool] = str.__eq__

    def texts(self) -> tuple[str, str]:
        """What the file holds (nothing if there is none), and what it should hold.

        Raises ValueError if its markers aren't those of the blocks, each once.
        """
        path = ROOT / self.file
        now = path.read_text(encoding="utf-8") if path.exists() else ""
        made = self.make()
        text = made if isinstance(made, str) else filled(now, made, self.file)
        return now, with_figures(text, self.file) if self.file.endswith(".md") else text


def whole_folder(folder: str, names: Sequence[str], make: Callable[[], Mapping[str, str]]) -> tuple[Page, ...]:
    """The pages of a folder that holds no others: ``make`` gives their texts by name."""
    return tuple(Page(f"{folder}/{name}.md", lambda name=name: make()[name]) for name in names)


PAGES = (
    Page("scenarios/edgefl.schema.json", scenario_schema),
    *whole_folder("docs/reference/scenario", SCENARIO_PAGES, scenario_pages),
    Page("docs/reference/commands.md", commands_page),
    Page("docs/reference/errors.md", errors_page),
    Page("docs/reference/python.md", python_page),
    Page("docs/reference/protocol.md", protocol_blocks),
    Page("docs/reference/records.md", record_blocks),
    *whole_folder("docs/reference/json", JSON_PAGES, answer_pages),
    Page("docs/reference/devices.md", device_blocks),
    Page("docs/get-started/first-run.md", quickstart_block),
    Page("docs/evidence/memory.md", memory_blocks),
    Page("docs/evidence/seconds.md", seconds_blocks),
    Page("docs/evidence/joules.md", joules_blocks),
    Page("docs/evidence/gpu.md", gpu_blocks),
    Page("docs/evidence/emulation.md", emulation_blocks),
    Page("docs/evidence/second-runtime.md", second_runtime_blocks),
    Page("docs/evidence/other-programs.md", other_program_blocks),
    Page("docs/evidence/papers/orderings.md", ordering_blocks),
    Page("docs/evidence/papers/open-questions.md", open_question_blocks),
    Page("docs/reference/data-sets.md", data_set_blocks),
    Page("docs/reference/towers.md", tower_blocks),
    Page("docs/reference/scenarios.md", scenarios_page),
    Page("docs/reference/bibliography.md", bibliography_page),
    Page("docs/concepts/how-the-clock-works.md", clock_blocks),
    Page("docs/concepts/methods.md", method_blocks),
    Page("docs/reference/refusals.md", refusal_blocks),
    Page("docs/evidence/fine-tuning-costs.md", lambda: fine_tune_blocks() | link_blocks(), slow=True),
    Page("docs/evidence/which-schedule-wins.md", answer_tables),
    Page("docs/evidence/papers/items.md", items_page),
    Page("docs/concepts/how-it-works.svg", rooms_drawing),
    Page("docs/concepts/how-it-works-dark.svg", dark_rooms_drawing),
    Page("docs/evidence/which-schedule-wins.svg", light_staircase, same=same_picture),
    Page("docs/evidence/which-schedule-wins-dark.svg", dark_staircase, same=same_picture),
    Page("docs/front-picture.json", front_facts, slow=True, same=same_facts),
    Page("docs/front-picture.svg", front_picture),
    Page("docs/front-picture-dark.svg", dark_front_picture),
)


MADE_FOLDERS = ("docs/reference/scenario", "docs/reference/json")
"""Folders that hold pages of ``PAGES`` alone."""


def left_over() -> list[str]:
    """The files of these folders that nothing makes, such as the page of a section that is gone."""
    made = {page.file for page in PAGES}
    found = (path.relative_to(ROOT).as_posix() for folder in MADE_FOLDERS for path in (ROOT / folder).iterdir())
    return sorted({*found} - made)


def filled(text: str, blocks: Mapping[str, str], file: str) -> str:
    """The text of a page with its blocks between their markers."""
    found = [match[2] for match in BLOCK.finditer(text)]
    if sorted(found) != sorted(blocks):
        wrong = sorted({*found} ^ {*blocks}) or "a block that stands there twice"
        raise ValueError(f"{file}: its markers and what is made for it differ: {wrong}")
    return BLOCK.sub(lambda match: match[1] + blocks[match[2]].strip("\n") + match[4], text)


def chosen(files: Sequence[str]) -> list[Page]:
    """The pages of these files, or all quick ones, with those that have figures alone.

    Raises ValueError for a file that isn't made and has no figure.
    """
    made = [page for page in PAGES if (page.file in files if files else not page.slow)]
    with_spans = [file for file in files_with_figures() if not files or file in files]
    of_figures = [Page(file, lambda file=file: (ROOT / file).read_text(encoding="utf-8")) for file in with_spans]
    found = {page.file: page for page in (*of_figures, *made)}
    if unknown := {*files} - {*found}:
        raise ValueError(f"not made: {', '.join(sorted(unknown))}; made: {', '.join(page.file for page in PAGES)}")
    return list(found.values())


def outdated(files: Sequence[str] = ()) -> dict[str, str]:
    """The files that aren't what the code says now, with the text that each should have."""
    texts = {page: page.texts() for page in chosen(files)}
    return {page.file: made for page, (now, made) in texts.items() if not page.same(now, made)}


def main() -> int:
    """Write or check what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="path from the root of the repository")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing")
    what.add_argument("--figures", action="store_true", help="list the measured figures by name")
    what.add_argument("--outputs", action="store_true", help="run the commands of pages and write their outputs")
    given = parser.parse_args()
    if given.figures:
        for name, text in figures().items():
            print(f"{name:44}{text}")
        return 0
    if given.outputs:
        if unknown := {*given.files} - {*OF_COMMANDS}:
            parser.error(f"no pages with commands: {', '.join(sorted(unknown))}; there are: {', '.join(OF_COMMANDS)}")
        by_hand = False
        for text in renew(given.files):
            print(text, flush=True)
            by_hand = True
        return int(by_hand)
    found = outdated(given.files)
    for file, text in found.items():
        if given.check:
            print(f"{file} is out of date: python tools/pages.py {file}")
        else:
            (ROOT / file).parent.mkdir(exist_ok=True)
            (ROOT / file).write_text(text, encoding="utf-8")
            print(file)
    gone = [] if given.files else left_over()
    for file in gone:
        if given.check:
            print(f"{file} is made by nothing any more: python tools/pages.py")
        else:
            (ROOT / file).unlink()
            print(f"{file} is gone")
    return int(given.check and bool(found or gone))


if __name__ == "__main__":
    sys.exit(main())
