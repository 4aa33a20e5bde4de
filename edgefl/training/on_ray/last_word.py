"""A process beside a run on Ray: it says which of Ray's own processes ended, if Ray's library then ends the run's.

The library calls ``_exit`` where the raylet's object store is gone, and the run's process can't say anything.  This
file is run by its path, with Python's standard library alone.  Its argument is JSON: ``services``, process ids by
name, ``says``, the line with places for ``names`` and ``verb``, and ``folder``, Ray's own if the run started Ray, else
"".  The run writes a byte to its stdin when it has left Ray.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Wait until the run's process has left Ray or has ended."""
    told = json.loads(sys.argv[1])
    files = {}
    for name, process in told["services"].items():
        with suppress(OSError):
            files[os.pidfd_open(process)] = name
    ended: list[str] = []
    waits = select.poll()
    for file in (0, *files):
        waits.register(file, select.POLLIN)
    while True:
        ready = {file for file, _ in waits.poll()}
        if 0 in ready:
            break
        ended = ended or [files[file] for file in ready]  # the others follow the first
        for file in ready:
            waits.unregister(file)
    if os.read(0, 1):
        return
    if ended:
        verb = "has" if len(ended) == 1 else "have"
        sys.stderr.write(f"edgefl: error: {told['says'].format(names=' and '.join(ended), verb=verb)}\n")
    if told["folder"]:
        for file in files:
            with suppress(OSError):
                signal.pidfd_send_signal(file, signal.SIGKILL)
        shutil.rmtree(told["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
