"""Count, page by page, what makes sentences of the documentation hard to read.

    python tools/prose.py                 each hand-written page, the densest first, and all of them together
    python tools/prose.py PAGE ...        these pages, and each sentence that counts, with its line
    python tools/prose.py --kind colons   each sentence of one kind, in all pages

Code, tables, lists of links, and blocks that are made from the code are left out.  A figure is a number in digits; a
version, a year in brackets and a number within code count as none.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAPERS = "docs/evidence/papers/"
"""Pages whose tables ``tools/papers.py`` makes; a test compares them."""
LONGEST = 40
"""Words of a sentence that a reader who learned English at school still holds together."""
FIGURES = 4
"""Figures from which on a sentence should be a row of a table."""

MADE = "<!-- Written by `python tools/pages.py`"
LEFT_OUT = re.compile(
    r"^```.*?^```$|^~~~.*?^~~~$|<!-- made: .*?<!-- /made -->|<!--.*?-->|^---\n.*?^---$|<picture>.*?</picture>"
    r"|^\|.*?$|^\s*!\[.*?\)$|^=== .*?$|^#+ .*?$|^:::.*?$",
    re.MULTILINE | re.DOTALL,
)
BLOCK_MADE = re.compile(r"<!-- made: .*?<!-- /made -->", re.DOTALL)
OUTPUT = re.compile(r"^```text\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)")
ENDS = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9`])")
SHORT = re.compile(r"\b(?:e\.g|i\.e|cf|vs|etc|et al|Fig|Eq|Sec|No|Table|approx)\.$")
WORD = re.compile(r"[A-Za-z0-9][\w'’.,/%-]*")
FIGURE = re.compile(r"(?<![\w.-])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w-]*[A-Za-z]\w*\d)")
VERB = (
    r"(?:is|are|was|were|has|have|had|does|do|did|can|could|will|would|must|may|might|should|isn't|aren't|wasn't|doesn't"
    r"|don't|didn't|can't|won't|hasn't|haven't|takes?|gives?|makes?|needs?|says?|holds?|comes?|goes|stays?|costs?|keeps?"
    r"|trains?|means?|shows?|counts?|adds?|uses?|runs?|reads?|writes?|leaves?|lets?|sends?|begins?|ends?|travels?|grows?"
    r"|falls?|fits?|asks?|knows?|becomes?|differs?|depends?|follows?|waits?|[a-z]{3,}(?:ed|es))"
)
CLAUSE = re.compile(rf"^(?:\S+\s+){{0,7}}?{VERB}\b")
SUBJECTLESS = re.compile(r"^(?:to |with |without |by |from |in |for |\W)")
NOUN_CLAUSE = re.compile(
    r"(?<!\bso )\b(?:what|whom|whoever|whatever)\b|\b(?:that|those) of\b"
    r"|\bthose (?:that|which|who|it|they|with|whose)\b"
    r"|\b(?:knows?|says?|see|shows?|tells?|decides?|of|on|about|is|and|or) who\b",
    re.IGNORECASE,
)
PRIVATE = re.compile(
    r"\b(?:told|tells?|witness(?:es|ed)?|beside|h[eo]ld against|mend(?:ed|s)?|the library|flights?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page without markup, and the line in which its paragraph begins."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> int:
        """Number of its words; code is one word."""
        return len(WORD.findall(CODE.sub("code", self.text)))

    @property
    def figures(self) -> int:
        """Number of its figures outside code."""
        return len(FIGURE.findall(CODE.sub("code", self.text)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of ``KINDS`` of which it is one."""
        plain = CODE.sub("code", self.text)
        found = {
            "long": self.words > LONGEST,
            "figures": self.figures >= FIGURES,
            "colons": _joins_clauses(plain),
            "clauses": NOUN_CLAUSE.search(plain) is not None and not plain.rstrip('")*').endswith("?"),
            "private": PRIVATE.search(plain) is not None,
        }
        return tuple(kind for kind, is_one in found.items() if is_one)


KINDS = {
    "long": f"more than {LONGEST} words",
    "figures": f"{FIGURES} figures or more",
    "colons": "a colon between two clauses, where a conjunction says more",
    "clauses": "a clause with what, that of or those of as a noun",
    "private": "a word that the field has another for",
}


@dataclass
class Counts:
    """What was counted in a page, or in several."""

    name: str
    size: int = 0
    """Words of the page with its tables and code, without what a program makes: blocks, outputs of commands, and the
    tables of papers."""
    words: int = 0
    sentences: int = 0
    paragraphs: int = 0
    """Paragraphs with more than ``FIGURES`` figures."""
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    @property
    def mean(self) -> float:
        """Words a sentence."""
        return self.words / max(1, self.sentences)

    def add(self, other: Counts) -> None:
        """Add another page's counts."""
        self.size += other.size
        self.words += other.words
        self.sentences += other.sentences
        self.paragraphs += other.paragraphs
        for kind, number in other.kinds.items():
            self.kinds[kind] += number

    def __str__(self) -> str:
        numbers = (self.size, self.words, self.sentences, f"{self.mean:.1f}", *self.kinds.values(), self.paragraphs)
        return "".join(f"{number:>9}" for number in numbers) + f"  {self.name}"


def pages() -> list[str]:
    """The hand-written pages: README and the docs without those that ``tools/pages.py`` writes whole."""
    found = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
    return [page for page in found if MADE not in (ROOT / page).read_text(encoding="utf-8")[:500]]


def sentences(page: str, text: str | None = None) -> Iterator[Sentence]:
    """The sentences of a page, in order, without headings, tables, code and made blocks."""
    for line, paragraph in _paragraphs((ROOT / page).read_text(encoding="utf-8") if text is None else text):
        begun = ""
        for piece in ENDS.split(paragraph):
            begun = f"{begun} {piece}".strip()
            if not SHORT.search(begun):
                if WORD.search(begun):
                    yield Sentence(page, line, begun)
                begun = ""
        if begun:
            yield Sentence(page, line, begun)


def count(page: str) -> Counts:
    """Count the sentences of a page and their kinds."""
    text = (ROOT / page).read_text(encoding="utf-8")
    by_hand = re.sub(r"<!--.*?-->", "", OUTPUT.sub("", BLOCK_MADE.sub("", text)), flags=re.DOTALL)
    if page.startswith(PAPERS):
        by_hand = re.sub(r"^\|.*$", "", by_hand, flags=re.MULTILINE)
    counts = Counts(page, len(by_hand.split()))
    for sentence in sentences(page, text):
        counts.words += sentence.words
        counts.sentences += 1
        for kind in sentence.kinds:
            counts.kinds[kind] += 1
    counts.paragraphs = sum(
        len(FIGURE.findall(CODE.sub("code", paragraph))) > FIGURES for _, paragraph in _paragraphs(text)
    )
    return counts


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists with their lines; what is left out keeps its number of lines."""
    kept = LEFT_OUT.sub(lambda match: "\n" * max(match[0].count("\n"), 0), text)
    position = 0
    for match in (*PARAGRAPH.finditer(kept), None):
        end = match.start() if match else len(kept)
        paragraph = kept[position:end]
        line = 1 + kept.count("\n", 0, position + len(paragraph) - len(paragraph.lstrip()))
        plain = LINK.sub(lambda link: link[1], paragraph)
        plain = re.sub(r"^\s*(?:[-*+]|\d+\.|!!!\s+\w+|\?\?\?\+?\s+\w+|>)\s+", "", plain, flags=re.MULTILINE)
        plain = " ".join(re.sub(r"\*\*|(?<!\w)_|_(?!\w)|<[^>]+>", "", plain).split())
        if plain:
            yield line, plain
        position = match.end() if match else end


def _joins_clauses(text: str) -> bool:
    """Whether a colon stands between two clauses, each with a verb."""
    for match in re.finditer(r":\s+", text):
        before, after = text[: match.start()], text[match.end() :]
        if re.search(rf"\b{VERB}\b", before) and not SUBJECTLESS.match(after) and CLAUSE.match(after):
            return True
    return False


def main() -> int:
    """Print the counts, and the sentences of the pages or of the kind that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="path from the root of the repository")
    parser.add_argument("--kind", choices=tuple(KINDS), help="list the sentences of this kind")
    given = parser.parse_args()
    chosen: Sequence[str] = given.pages or pages()
    if unknown := [page for page in chosen if not (ROOT / page).is_file()]:
        parser.error(f"no such page: {', '.join(unknown)}")
    counted = [count(page) for page in chosen]
    total = Counts("all")
    print("".join(f"{name:>9}" for name in ("size", "words", "sents", "mean", *KINDS, "paras")) + "  page")
    for counts in sorted(counted, key=lambda each: -each.mean):
        print(counts)
        total.add(counts)
    print(total)
    if given.pages or given.kind:
        for page in chosen:
            for sentence in sentences(page):
                kinds = [kind for kind in sentence.kinds if given.kind in (None, kind)]
                if kinds:
                    print(f"{page}:{sentence.line}: {', '.join(kinds)}: {sentence.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
