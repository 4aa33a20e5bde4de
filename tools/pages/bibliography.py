"""The page ``bibliography.md``: the papers that parts of edgefl come from, as ``bibliography.bib`` has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tools.pages.markdown import page, registered, table

BIB = Path(__file__).resolve().parents[2] / "docs/reference/bibliography.bib"
GROUPS = {
    "methods": "method",
    "schedules": "schedule",
    "selections": "selection",
    "policies": "round policy",
    "aggregations": "aggregation rule",
    "server_optimizers": "server optimizer",
    "optimizers": "optimizer",
    "adapters": "adapter",
    "datasets": "data set",
    "partitions": "partition",
    "towers": "tower",
    "models": "model",
}
"""The groups of parts that come from papers, and what a part is called."""
ENTRY = re.compile(r"^@(?:article|inproceedings|misc)\{\w+,\n((?:  \w+ = \{.+\},\n)+)\}$", re.MULTILINE)
FIELD = re.compile(r"^  (\w+) = \{(.+)\},$", re.MULTILINE)


def bibliography_page() -> str:
    """Every paper with its title, where it appeared, and the parts that are made after it.

    Raises ValueError if a part names a paper that the file lacks, or an entry names a part that isn't there, or nothing
    at all.
    """
    papers = entries(BIB.read_text(encoding="utf-8"))
    used: dict[str, dict[str, list[str]]] = {name: {} for name in papers}
    for paper, noun, part in (*_named_by_parts(), *_named_by_entries(papers)):
        if paper not in used:
            raise ValueError(f"{noun} {part}: {BIB.name} has no entry with the shorthand {paper!r}")
        used[paper].setdefault(noun, []).append(f"`{part}`")
    if idle := sorted(paper for paper, parts in used.items() if not parts):
        raise ValueError(f"{BIB.name}: nothing in edgefl comes from {', '.join(idle)}")
    rows = [
        (paper, _told(papers[paper]), _linked(papers[paper]), "; ".join(_nouns(parts)))
        for paper, parts in sorted(used.items(), key=lambda item: item[0].casefold())
    ]
    return page(
        "Bibliography",
        [
            "The papers that edgefl's methods, schedules, data sets, models and other parts come from. "
            f"[{BIB.name}]({BIB.name}) has them for BibTeX. "
            "[Methods](../concepts/methods.md) and [schedules](../concepts/schedules.md) say what differs from "
            "the paper, [published tables](../evidence/papers/README.md) which tables were made again. Sets without a "
            "paper are in [data sets](data-sets.md), sources of devices and links in their [profiles](devices.md).",
            table(("Paper", "Title and place", "Identifier", "What comes from it"), rows),
        ],
    )


def entries(text: str) -> dict[str, dict[str, str]]:
    """The fields of each entry by its shorthand.  Raises ValueError for a line that isn't read."""
    if rest := ENTRY.sub("", text.partition("\n\n")[2]).strip():
        raise ValueError(f"{BIB.name}: one field a line, each ending in a comma, not {rest.splitlines()[0]!r}")
    found = [dict(FIELD.findall(entry[1])) for entry in ENTRY.finditer(text)]
    return {entry["shorthand"]: entry for entry in found}


def _named_by_parts() -> Iterator[tuple[str, str, str]]:
    """Paper, noun and name of each part whose class names its ``paper``."""
    for group, noun in GROUPS.items():
        for name, part in registered(group).items():
            if paper := getattr(part, "paper", ""):
                yield paper, noun, name


def _named_by_entries(papers: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str, str]]:
    """The same of the parts and fields of a scenario that an entry's ``keywords`` name."""
    known = {f"{noun} {name}": (noun, name) for group, noun in GROUPS.items() for name in registered(group)}
    for paper, entry in papers.items():
        for keyword in filter(None, entry.get("keywords", "").split(", ")):
            if keyword not in known and "." not in keyword:
                raise ValueError(f"{BIB.name}: {paper}: there is no {keyword}")
            yield paper, *known.get(keyword, ("field", keyword))


def _nouns(parts: Mapping[str, list[str]]) -> Iterator[str]:
    return (f"{noun} {', '.join(names)}" for noun, names in parts.items())


def _told(entry: Mapping[str, str]) -> str:
    """Title and place."""
    place = entry.get("booktitle") or entry.get("journal") or entry.get("note")
    title = entry["title"].rstrip("?")
    return f"{entry['title']}{'' if title != entry['title'] else '.'} {place or 'Preprint'}"


def _linked(entry: Mapping[str, str]) -> str:
    """The identifier with its link."""
    if "eprint" in entry:
        return f"[arXiv {entry['eprint']}](https://arxiv.org/abs/{entry['eprint']})"
    if "doi" in entry:
        return f"[doi {entry['doi']}](https://doi.org/{entry['doi']})"
    address = entry.get("url", "")
    return f"[{urlsplit(address).netloc}]({address})" if address else "–"
