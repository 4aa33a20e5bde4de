"""tools/count_functions.py: what holds a value, and how few functions a rate, a price and a client's update pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "count_functions.py"
sys.path.append(str(TOOL.parent))

import count_functions  # noqa: E402 - the tools' folder must be on the path


@dataclass(frozen=True)
class Box:
    inside: object


class Pair(Sequence[object]):
    def __init__(self, *inside: object):
        self.inside = inside

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, index: int) -> object:  # type: ignore[override]
        return self.inside[index]


def test_a_value_is_found_however_deep_to_the_last_bit() -> None:
    search = count_functions.Search(count_functions.one_of([0.1, 2.5]))
    assert search.held({"a": [1.0, (Box(0.1),)]}) == ("dict", "list", "tuple", "Box", "float")
    assert search.held(Pair(1.0, 2.5)) == ("Pair", "float")
    assert search.held(np.array([[1.0, 2.5]])) == ("ndarray",)
    assert search.held([0.1 + 2**-55, 2, "2.5", np.array([2]), None]) is None


def test_an_object_is_found_by_its_class_and_other_objects_are_not_looked_into() -> None:
    search = count_functions.Search(lambda value: isinstance(value, Box))
    assert search.held([Pair(1, Box(2))]) == ("list", "Pair", "Box")

    class Keeper:
        def __init__(self) -> None:
            self.box = Box(1)

    assert search.held([Keeper()]) is None


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The names of the functions on each way, in order."""
    path = tmp_path_factory.mktemp("ways") / "found.json"
    done = subprocess.run([sys.executable, str(TOOL), "--out", str(path)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    return {title: [each["function"].partition(":")[2] for each in seen] for title, seen in found.items()}


@pytest.mark.slow(smaller="test_a_value_is_found_however_deep_to_the_last_bit")
@pytest.mark.parametrize(
    ("way", "most", "some"),
    [
        # each more is a function that a reader has to follow
        (
            "the way of a learning rate",
            26,
            ("TrainingOptions.scalars_of", "Method.work", "Planner.scalars", "SGD.build"),
        ),
        ("a price", 37, ("price_rounds", "Phases.seconds", "_row", "profile", "Command.show", "Quantity.show")),
        ("a client's update", 22, ("Update.from_data", "why_refused", "Method.aggregate", "Method.combine")),
    ],
)
def test_a_value_passes_few_functions(ways: dict[str, list[str]], way: str, most: int, some: tuple[str, ...]) -> None:
    names = ways[way]
    assert 10 < len(names) == len(set(names)) <= most
    assert set(some) <= set(names)


@pytest.mark.slow(smaller="test_an_object_is_found_by_its_class_and_other_objects_are_not_looked_into")
def test_an_update_passes_from_the_workers_answer_to_the_methods_mean(ways: dict[str, list[str]]) -> None:
    names = ways["a client's update"]
    assert names.index("Update.from_data") < names.index("why_refused") < names.index("Method.aggregate")
    assert not any(name.endswith(("__init__", "__post_init__")) for name in names)
