"""What a released version wrote: runs and answers of the scenarios in its folder, which later versions must read.

    python tests/recorded/release.py FOLDER      write runs and answers into FOLDER, with the edgefl that is imported

``FOLDER/scenarios`` and ``FOLDER/parts.py``, a plug-in with a part of each kind, are written by hand before a release.
A run is finished, but for ``UNFINISHED``, which ends in its second round.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

UNFINISHED = "fleet"
"""The scenario whose run is left unfinished: it has the most sections."""


class EndedHere(Exception):
    """The unfinished run ends here."""


def stop_after_two(event: str, facts: Mapping[str, Any]) -> None:
    """End a run when its second round is recorded, so that the first has a checkpoint."""
    if event == "record" and facts["round"] == 2:
        raise EndedHere


def answers(folder: Path, runs: Path) -> dict[str, Callable[[], Any]]:
    """What commands are asked, by the name of the file with the answer."""
    import edgefl

    net, fleet = folder / "scenarios" / "net.yaml", folder / "scenarios" / "fleet.yaml"
    return {
        "validate": lambda: edgefl.validate(net),
        "profile": lambda: edgefl.profile(fleet),
        "sweep": lambda: edgefl.sweep(fleet, ["fleet.budgets.memory=1MiB,2MiB"]),
        "fit": lambda: edgefl.fit(fleet, device="raspberry-pi-zero-2w", kind="image", memory="1 MiB", answers=1),
        "compare": lambda: edgefl.compare([runs / "net", runs / "split"]),
        "explain": lambda: edgefl.explain(runs / "net", round=1),
    }


def write(folder: Path) -> None:
    """Write ``runs`` and ``answers`` anew."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    import edgefl
    from edgefl import registry
    from edgefl.console.derived import silent

    registry.load_plug_in(str(folder / "parts.py"))
    for name in ("runs", "answers"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    for scenario in sorted((folder / "scenarios").glob("*.yaml")):
        told = stop_after_two if scenario.stem == UNFINISHED else silent
        with suppress(EndedHere):
            edgefl.run(scenario, out=folder / "runs" / scenario.stem, on_progress=told)
    for name, answer in answers(folder, folder / "runs").items():
        text = json.dumps(answer().to_data(), indent=1)
        (folder / "answers" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "scenarios").is_dir():
        sys.exit(__doc__)
    write(Path(sys.argv[1]))
