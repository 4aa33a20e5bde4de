"""When garbage is collected: not while a command imports, and from then on."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

from edgefl import garbage


class Knot:
    """An object that only a collection finds, as it refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_nothing_is_collected_until_it_is_said_that_all_is_imported() -> None:
    with garbage.pausing_collection():
        lost = weakref.ref(Knot())
        made = [[] for _ in range(100_000)]  # enough for collections of each generation
        assert len(made) == 100_000 and lost() is not None and not gc.isenabled()
        with garbage.pausing_collection():  # a second one changes nothing
            pass
        assert not gc.isenabled()
        garbage.resume_collection()
        assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    assert gc.isenabled() and lost() is None


def test_who_collects_himself_goes_on_to_do_so() -> None:
    gc.disable()
    try:
        with garbage.pausing_collection():
            garbage.resume_collection()
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_command_collects_nothing_while_it_imports_torch(tmp_path: Path) -> None:
    code = (
        "import gc, sys\nfrom edgefl.console import main\n"
        "def seen(phase, facts): during.append('torch' in sys.modules and not hasattr(sys.modules['torch'], 'hub'))\n"
        "during = []\ngc.callbacks.append(seen)\n"
        "try: main(['validate', 'quickstart', '--set', 'round.cohort=no'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, any(during), gc.isenabled())"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
