"""What makes sentences hard to read is found, and the documentation has little of it."""

from __future__ import annotations

import pytest

from tools import prose

MOST = {"long": 10, "figures": 40, "colons": 120, "clauses": 150, "private": 40}
"""Sentences of each kind in all hand-written pages together; they had 86, 185, 444, 686 and 191."""


def kinds(text: str) -> list[tuple[str, ...]]:
    return [sentence.kinds for sentence in prose.sentences("a page", text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The clients train. They send updates.", [(), ()]),
        ("It " + "very " * 40 + "much grows.", [("long",)]),
        ("It took 1, 2.5, 3 and 4 s.", [("figures",)]),
        ("It took `1, 2, 3, 4` s, 5 and 6.", [()]),
        ("The clock is virtual: no client waits, so it takes seconds.", [("colons",)]),
        ("There are three kinds: image, text and both.", [()]),
        ("It shows what a client pays.", [("clauses",)]),
        ("The price is that of the largest client.", [("clauses",)]),
        ("What does a round cost?", [()]),
        ("The table stands beside the figure.", [("private",)]),
        ("# What is told\n\n| what | 1, 2, 3, 4 |\n\n```sh\nwhat is told\n```\n\nText.", [()]),
        ("<!-- made: x -->\n\nIt is told.\n\n<!-- /made -->\n\nIt ends.", [()]),
        ("- It shows [the price, 1, 2](x.md).\n- See Fig. 2 of it.", [(), ()]),
    ],
)
def test_each_kind_of_sentence_is_found(text: str, found: list[tuple[str, ...]]) -> None:
    assert kinds(text) == found


def test_lines_and_words_are_those_of_the_page() -> None:
    text = "# Title\n\n```sh\na\n```\n\nOne two three.\nFour `five six` seven.\n\n- Eight."
    assert [(each.line, each.words) for each in prose.sentences("a page", text)] == [(7, 3), (7, 3), (10, 1)]


def test_the_documentation_has_few_of_them() -> None:
    total = prose.Counts("all")
    for page in prose.pages():
        total.add(prose.count(page))
    assert {kind: number for kind, number in total.kinds.items() if number > MOST[kind]} == {}
    assert total.size <= 93_000
    assert prose.count("README.md").mean <= 15.5
