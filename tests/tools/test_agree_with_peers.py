"""The tool that compares edgefl's weights with other programs': what it does without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import agree_with_peers as tool
found = {}
for method in tool.METHODS:
    folder = Path(sys.argv[1]) / method
    folder.mkdir()
    ours, case = tool.played(method, folder), tool.Case.read(folder)
    swapped = tool.Case(case.first, case.client, case.x.flip(0), case.y.flip(0))
    turned = tool.by_hand(case, method, -1)
    by_hand = tool.by_hand(case, method)
    found[method] = [tool.difference(ours, each) for each in (by_hand, tool.by_hand(swapped, method), turned)]
print(json.dumps(found))
"""


@pytest.mark.slow(smaller="test_the_bare_loop_is_federated_averaging")
def test_a_loop_by_hand_has_edgefls_weights(tmp_path: Path) -> None:
    # in a process of its own, because it registers its data set and its tower
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(ROOT / "tools"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found) == {"fedavg", "fedprox", "scaffold"}
    for same, swapped, turned in found.values():
        assert same <= 1e-13
        assert swapped > 1e-4  # other batches are noticed
        assert turned > 1e-4 or turned == same
    assert found["scaffold"][2] > 1e-4  # and so is the other sign of control variates
