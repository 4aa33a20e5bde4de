"""A name says what it names: classes share none, and a function is a verb or a noun, never a bare participle.

``participles.txt`` lists the functions that still have a participle for a name.  It only shrinks: a new one fails, and
so does a row whose function has another name by now.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "edgefl"
LISTED = Path(__file__).parent / "participles.txt"
MOST = 3

IRREGULAR = frozenset(
    """
    become begun bent born bought bound broken brought built caught chosen come dealt done drawn driven dug
    eaten fallen fed felt flown forgotten found frozen given gone got grown heard held hidden hung kept known
    laid led left lent lost made meant met overtaken paid redrawn remade rewritten risen said seen sent shaken
    shown shut slept sold spent spoken stolen stood struck sung sunk swept sworn taken taught thought thrown
    told torn undone understood unknown unmade unseen withheld won worn wound woven written
    """.split()
)
VERBS = frozenset("exceed embed feed need proceed seed shed speed".split())
"""Words that end as a participle does and are none.  Verbs whose participle is no other word (read, run, cut, put, set,
split, cast, spread) aren't in ``IRREGULAR`` either."""
PARTICLES = frozenset(
    """
    after again ahead alone and apart as at before beside between by for from here in into not now of off on
    once only or out over per so than then there through to together under up with within without yet
    """.split()
)


def is_bare_participle(name: str) -> bool:
    """Whether all words but prepositions are participles: ``told``, ``_made_of``, but not ``trained_names``."""
    words = [word for word in name.strip("_").split("_") if word not in PARTICLES]
    return bool(words) and all(
        word in IRREGULAR or (word.endswith("ed") and len(word) > 3 and word not in VERBS) for word in words
    )


def definitions(node: ast.AST, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.stmt]]:
    """Classes and functions with their qualified names, however deep."""
    for child in ast.iter_child_nodes(node):
        inside = path
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*path, child.name)
            yield ".".join(inside), child
        yield from definitions(child, inside)


@cache
def names() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The package's outermost classes, and its functions by their qualified names, with the file's path below it."""
    classes, functions = list[tuple[str, str]](), list[tuple[str, str]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        file, tree = path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        classes += [(file, each.name) for each in tree.body if isinstance(each, ast.ClassDef)]
        functions += [(file, name) for name, each in definitions(tree) if not isinstance(each, ast.ClassDef)]
    return classes, functions


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for file, name in names()[0]:
        places[name].append(file)
    assert len(places) > 900
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_function_is_no_bare_participle_but_for_a_list_that_shrinks() -> None:
    found = {f"{file} {name}" for file, name in names()[1] if is_bare_participle(name.rpartition(".")[2])}
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    assert listed == sorted(set(listed)) and len(listed) <= MOST
    assert sorted(found - set(listed)) == [], "name these functions by a verb, or by a noun for what they return"
    assert sorted(set(listed) - found) == [], f"these have another name now: delete their lines in {LISTED.name}"


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        *((name, True) for name in ("told", "_kept", "made_of", "shown_for", "_given_up", "sent_and_received", "used")),
        *((name, False) for name in ("read", "run", "_cut", "embed", "seed", "trained_names", "is_done", "bytes_sent")),
        *((name, False) for name in ("__init__", "_", "to_data", "scale_rates", "red")),
    ],
)
def test_what_counts_as_a_bare_participle(name: str, bare: bool) -> None:
    assert is_bare_participle(name) == bare
