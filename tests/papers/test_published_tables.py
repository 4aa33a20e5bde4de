"""The papers' tables and figures as they are typed in: pages and programs that repeat a published number have it so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgefl.errors import EdgeflError, UnknownName
from edgefl.scenario import scenario_names
from tools.paper_tables.page_tables import numbers
from tools.paper_tables.published_tables import paper_names, published, published_tables, rows_of, table_of

ROOT = Path(__file__).parents[2]
EVERYBODY = tuple(paper_names())
OF_PAPERS = {
    "docs/evidence/papers/fedcola-": ("fedcola",),
    "docs/evidence/papers/mcfl-": ("mcfl", "creamfl"),
    "docs/evidence/papers/lw-": ("fedmml",),
    "docs/evidence/papers/pmcmfl": ("pmcmfl",),
    "docs/concepts/methods/fedcola": ("fedcola", "mcfl"),
    "docs/concepts/methods/representations": ("creamfl",),
    "docs/concepts/methods/prototypes": ("pmcmfl",),
    "docs/guides/": ("fedcola",),
    "scenarios/papers/fedcola-": ("fedcola",),
    "scenarios/papers/mcfl-": ("mcfl", "creamfl"),
    "scenarios/papers/creamfl-": ("creamfl",),
    "scenarios/papers/pmcmfl-": ("pmcmfl",),
    **{f"scenarios/papers/{schedule}fedmml-": ("fedmml",) for schedule in ("", "lw-", "prog-")},
}
"""How names of files begin that are about these papers; others may be about each of the five."""
OTHERS = ("docs/evidence/papers/estimates", "docs/evidence/papers/items", "docs/concepts/methods/aggregation")
"""Pages about other publications, and the list of items, whose numbers are not figures."""
FILES = (
    *(path for folder in ("docs/evidence/papers", "docs/concepts/methods") for path in (ROOT / folder).glob("*.md")),
    *(ROOT / f"docs/guides/{name}.md" for name in ("analyse", "reproduce-a-paper")),
    *(path for path in (ROOT / "scenarios/papers").glob("*.yaml") if not path.name.startswith("estimates")),
)
PAGES = {
    file: next((papers for begin, papers in OF_PAPERS.items() if file.startswith(begin)), EVERYBODY)
    for file in sorted(path.relative_to(ROOT).as_posix() for path in FILES)
    if not file.startswith(OTHERS)
}
"""Files that may say what papers print, and the papers."""
NOT_THEIRS = re.compile(
    r"public code|only the code|here and|memory here|from shapes by hand|[Rr]ead literally|also deliver"
    r"|position numbers|of client 0"
)
"""In a sentence about public code, or about a figure of edgefl's."""
NAMES = re.compile(
    r"Tables? \w+( and \d+)?|Figs?\. \d+|CIFAR-100|Flickr30k|PCME|Yu et al\. \d+|BEiT-3|round [12]|vqa-310|near 2"
    r"|gains \.24|4 x 500 x 384|L2 norm|of 2 blocks|seeds \d+ and \d+"
)
"""Numbers in names, and some that aren't the paper's."""


def sentences(text: str) -> list[str]:
    """The sentences of a page, a row of a table and a comment being one each, without code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=[-|#] ?)", text):
        whole = " ".join(block.split())
        found += [whole] if whole.startswith("|") else re.split(r"(?<=[.:])\s+(?=[A-Z])", whole)
    return found


def said(file: str) -> str:
    """What a page says, or the comments of a scenario, those of whole lines as one text."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".md"):
        return text
    lines = [re.search(r"(?:^|\s)# (.*)", line) for line in text.splitlines()]
    head = " ".join(found[1] for line, found in zip(text.splitlines(), lines, strict=True) if found and line[0] == "#")
    return "\n\n".join([head, *(found[1] for found in lines if found and found[1] not in head)])


def figures_called_published(text: str) -> list[tuple[float, str]]:
    """``(number, sentence)`` of each number in a sentence that says published or speaks of what the paper has."""
    return [
        (number, sentence)
        for sentence in sentences(text)
        if re.search(r"[Pp]ublished|(?<!CreamFL's )\bpaper\b", sentence) and not NOT_THEIRS.search(sentence)
        for number in numbers(NAMES.sub("", sentence))
    ]


def is_printed(number: float, papers: tuple[str, ...]) -> bool:
    """Whether a paper prints the number, or one that it is rounded from; a ratio of two figures of one unit counts."""
    for paper in map(published, papers):
        memory = [fact.value for name, fact in paper.facts.items() if name.startswith("memory-") and fact.value]
        ratios = {round(a / b, 3) for a in memory for b in memory}
        for figure in paper.figures | ratios:
            if figure == number or any(round(figure, digits) == number for digits in (1, 2) if number % 1):
                return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_a_number_called_published_is_one_that_the_paper_prints(page: str) -> None:
    found = figures_called_published(said(page))
    unknown = [(number, sentence) for number, sentence in found if not is_printed(number, PAGES[page])]
    assert not unknown


def test_numbers_called_published_are_found() -> None:
    text = "The paper prints 3.21 % for `7`. Ours are 9. AdamW with 40 tokens is in the public code, not in the paper."
    assert [number for number, _ in figures_called_published(text)] == [3.21]
    assert figures_called_published("| published | 0.51 |")[0][0] == 0.51
    page = figures_called_published(said("docs/evidence/papers/pmcmfl.md"))
    assert {3.21, 5.43, 2.2, 2.9} <= {number for number, _ in page}
    assert (371.26, "Published:") not in page and figures_called_published(
        said("scenarios/papers/fedcola-creamfl.yaml")
    )
    assert not is_printed(224_369_206, ("pmcmfl",)) and is_printed(27.5, ("pmcmfl",))


def test_every_paper_has_tables_of_shipped_scenarios() -> None:
    assert paper_names() == ["creamfl", "fedcola", "fedmml", "mcfl", "pmcmfl"]
    shipped = set(scenario_names())
    for paper, table in published_tables().values():
        assert table.base in shipped and paper.facts
        assert all(re.fullmatch(r"[a-z0-9.e-]{1,40}", row) for row in table.rows)


@pytest.mark.parametrize("table", ["fedcola-t1", "fedcola-t7", "creamfl-t1"])
def test_a_sum_of_recalls_is_that_of_its_cells_but_for_the_slips(table: str) -> None:
    """R@1_sum adds R@1 both ways, of 1,000 and of 5,000 pictures."""
    _, found = table_of(table)
    names = list(found.metrics)
    parts = [i for i, name in enumerate(names) if name != "sum" and "R@5" not in name and "R@10" not in name]
    wrong = {
        row
        for row, each in found.rows.items()
        if abs(sum(each.printed[i] for i in parts) - each.printed[-1]) > 0.015 + 1e-9
    }
    assert all(any(row in slip for slip in found.slips) for row in wrong), wrong


@pytest.mark.parametrize("table", ["mcfl-t1", "mcfl-t3", "mcfl-t3-medical", "mcfl-t4", "mcfl-t4-medical"])
def test_a_mean_of_accuracies_is_that_of_its_cells_but_for_the_slips(table: str) -> None:
    _, found = table_of(table)
    wrong = {row for row, each in found.rows.items() if abs(sum(each.printed[:2]) / 2 - each.printed[2]) > 0.0101}
    assert all(any(row in slip for slip in found.slips) for row in wrong), wrong


def test_sums_over_rates_of_missing_samples_are_the_printed_ones() -> None:
    _, table = table_of("pmcmfl-t1")
    sums = {"fedavg-ignore": 244.292, "fedavg-random": 244.964, "fedhkd": 251.584, "pmcmfl": 260.960}
    for row, total in sums.items():
        cells = [table.rows[f"{row}-{share}"].printed[0] for share in (10, 20, 30, 40, 50)]
        assert sum(cells) == pytest.approx(total, abs=5e-4)


def test_an_unknown_table_or_row_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'fedcola-t1'"):
        table_of("fedcola-1")
    with pytest.raises(UnknownName, match="did you mean 'complementary'"):
        rows_of(table_of("fedcola-t2")[1], ["complementry"])
    with pytest.raises(EdgeflError, match="paper 'fedcolla' does not exist|fedcolla"):
        published("fedcolla")
    assert rows_of(table_of("fedcola-t2")[1], ["compensation", "none"]) == ["none", "compensation"]
