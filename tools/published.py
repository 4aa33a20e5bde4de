"""Hold predictions against published measurements of training on devices of the library.

python tools/published.py
python tools/published.py --device jetson-xavier-nx-8gb --full
python tools/published.py --out published.png --as json
python tools/published.py --record docs/evidence/figures/seconds.json   # the figures that pages repeat
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.program import add_form, print_answer, program


def main(arguments: list[str] | None = None) -> None:
    """Predict, and print how far off that is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append", default=[], metavar="NAME",
                        help="only this device; may be repeated; default: the library")  # fmt: skip
    parser.add_argument("-o", "--out", metavar="FILE", help="draw predicted over measured: .png, .pdf or .svg")
    parser.add_argument(
        "--record", metavar="FILE", help="write how far off seconds and joules are, as JSON for the pages"
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
            kept = {"from": "`tools/published.py`"}
            kept |= {name: known[name] for name in ("questions", "shipped", "joules")}
            Path(given.record).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print_answer(result, given.form, lambda answer: print_published(answer, full=given.full))


if __name__ == "__main__":
    main()
