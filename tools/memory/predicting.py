"""What edgefl predicts for a configuration.

    python tools/memory/predicting.py

reads configurations as lines of JSON from standard input, and answers each with a line.  Its caches are in a temporary
folder, so everything that it looks up on disk was written by this run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def predicted(configuration: Json) -> Json:
    """Bytes that edgefl predicts, by part, whether their scratch is assumed, and the seconds of processor time."""
    from edgefl.setup.compose import planner_of, scenario_of

    started = time.process_time()
    planner = planner_of(scenario_of(configuration["scenario"]))
    setup, kind = planner.setup, configuration["kind"]
    stage = setup.schedule.offered[configuration["stage"] - 1]
    if configuration["work"] == "evaluate":
        work, source = setup.restrict_to_stage(setup.method.evaluate(kind, "test"), stage), setup.clients.server()
    else:
        source = setup.clients.client(int(setup.of_kind(kind)[0]))
        work = planner.work(kind, configuration["round"], stage)[0].limit_batches(source.size)
    trace = planner.predictor.trace(work, source)
    parts = {name: size for name, size in trace.memory_bytes.items() if size}
    return {
        "bytes": trace.peak_memory_bytes,
        "parts": parts,
        "assumed": trace.assumed,
        "seconds": time.process_time() - started,
    }


def answered(configuration: Json) -> Json:
    """``predicted``; ``failed`` says in one line why there is no answer."""
    try:
        return predicted(configuration)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = " ".join(str(error).split())[:300]
        return {"failed": f"{type(error).__name__}: {line} ({Path(place.filename).name}:{place.lineno})"}


def main() -> int:
    """Answer configurations until standard input ends."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGEFL_CACHE"] = folder
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what edgefl prints is no answer
        for line in sys.stdin:
            print(json.dumps(answered(json.loads(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
