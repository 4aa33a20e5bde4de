"""Hold predictions against published measurements of training on devices of the library.

python tools/published.py
python tools/published.py --device jetson-xavier-nx-8gb --full
python tools/published.py --out published.png --as json
python tools/published.py --record docs/evidence/figures   # the figures that pages repeat: seconds.json, joules.json
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edgefl.devices.profile import hardware
from tools.program import add_form, print_answer, program
from tools.published_steps.answer import PublishedAgreement


def joules_rows(result: PublishedAgreement) -> list[dict[str, object]]:
    """Joules of each metered step beside those of fits that lack its device, and watts, which stand before joules."""
    return [
        {"device": row.device, "model": row.model, "precision": row.precision, "batch": row.batch,
         "measured": row.measured, "predicted": row.foretold.unseen_device, "measured_watts": watts.measured,
         "predicted_watts": watts.predicted, "full_watts": hardware(row.device).compute_watts}
        for watts, row in pairwise(result.rows) if row.quantity == "joules" and row.foretold is not None
    ]  # fmt: skip


def write_figures(file: Path, kept: dict[str, object]) -> None:
    """Write what pages repeat."""
    text = json.dumps({"from": "`tools/published.py`"} | kept, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Predict, and print how far off that is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append", default=[], metavar="NAME",
                        help="only this device; may be repeated; default: the library")  # fmt: skip
    parser.add_argument("-o", "--out", metavar="FILE", help="draw predicted over measured: .png, .pdf or .svg")
    parser.add_argument(
        "--record", metavar="FOLDER", help="write how far off seconds and joules are, as JSON for the pages"
    )
    parser.add_argument("--full", action="store_true", help="every measurement, and its source")
    add_form(parser)
    given = parser.parse_args(arguments)
    with program() as on_progress:
        from tools.published_steps.predicting import validate_devices
        from tools.published_steps.printed import print_published

        result = validate_devices(devices=given.device, plot=given.out, on_progress=on_progress)
        if given.record:
            known = result.to_data()
            kept = {name: known[name] for name in ("questions", "shipped")}
            write_figures(Path(given.record) / "seconds.json", kept)
            kept = {name: known[name] for name in ("joules", "joules_by_device")}
            kept["rows"] = joules_rows(result)
            write_figures(Path(given.record) / "joules.json", kept)
        print_answer(result, given.form, lambda answer: print_published(answer, full=given.full))


if __name__ == "__main__":
    main()
