"""The examples in the docstrings of the public names do what they show."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator

import pytest

import edgefl
from edgefl import registry

SLOW = {"calibrate"}
"""Examples that measure for seconds."""


def examples_of(name: str) -> doctest.DocTest:
    """The examples of a public name as one test."""
    text = inspect.getdoc(getattr(edgefl, name)) or ""
    return doctest.DocTestParser().get_doctest(text.partition("Examples:\n")[2], {}, name, None, None)


def tried(name: str) -> str:
    """Run the examples of a name; what differs from the docstring, as text."""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples_of(name), out=said.append)
    return "".join(said)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Stand in a folder in which the example of ``run`` has run, as the others say; what differed there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("examples"))
        yield tried("run")
    for key in [key for key in registry.PARTS if key == ("partition", "halves")]:
        del registry.PARTS[key]
    registry._forget_parts()


@pytest.mark.parametrize("name", [name for name in edgefl.__all__ if name not in SLOW])
def test_an_example_does_what_it_shows(name: str, here: str) -> None:
    assert examples_of(name).examples, f"edgefl.{name} has no example"
    wrong = here if name == "run" else tried(name)
    assert not wrong, wrong


@pytest.mark.slow(smaller="test_an_example_does_what_it_shows")
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_slow_example_does_what_it_shows(name: str, here: str) -> None:
    assert examples_of(name).examples and not tried(name)
