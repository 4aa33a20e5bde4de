"""tools/count_functions.py: what holds a value, and the functions that a client's update passes through."""

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


@pytest.mark.slow
def test_an_update_passes_from_the_workers_answer_to_the_methods_mean(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, str(TOOL), "--only", "update", "--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (seen,) = json.loads(found.read_text()).values()
    names = [each["function"].partition(":")[2] for each in seen]
    # 33 before an update was one object; each more is a function that a reader has to follow
    assert 10 < len(names) == len(set(names)) <= 22
    assert {"Update.from_data", "why_refused", "Method.aggregate", "Method.combine"} <= set(names)
    assert names.index("Update.from_data") < names.index("why_refused") < names.index("Method.aggregate")
    assert not any(name.endswith(("__init__", "__post_init__")) for name in names)
