"""Configuration of all tests: they import the checkout, and annotations are checked at run time."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from beartype import BeartypeConf
from beartype.claw import beartype_packages
from hypothesis import HealthCheck, settings

# The same examples in every run, so that only a change of the code can fail; HYPOTHESIS=explore draws others.
# A machine that is busy while they are drawn isn't a fault of the strategy.
settings.register_profile("same", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same" if os.environ.get("HYPOTHESIS") != "explore" else "default")

ROOT = Path(__file__).resolve().parent.parent

# Annotated arguments and return values of these rooms, which only other rooms call, are checked at each call.  Other
# rooms are tested with wrong values on purpose and must raise their own messages.
# This must come before edgefl is imported.
CHECKED = (
    "edgefl.models", "edgefl.work", "edgefl.methods.depthfl.steps", "edgefl.methods.prototypes.matching",
    "edgefl.methods.prototypes.losses", "edgefl.methods.representations.probabilistic_step",
    "edgefl.methods.representations.steps",
)  # fmt: skip
# A check reads a value of a mapping, and an update's may be drawn when they are read, or gone where they were added up.
UNREAD = ("edgefl.work.update",)
beartype_packages(CHECKED, conf=BeartypeConf(violation_type=TypeError, claw_skip_package_names=UNREAD))

# Steps and sources for tests are found by entry point, like those of a plug-in.
sys.path.insert(0, str(ROOT / "tests" / "toys"))

# Small operators are slower on two threads than on one, and much slower on busy cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tables in tests and on pages have this width, whatever the tester's terminal.
os.environ["COLUMNS"] = "100"

# What pytest collects stays: looking for garbage in between took a seventh of that time.
gc.set_threshold(100_000, 10, 100)

# Runs wait for the disk until their files lie there; where memory can hold the folders of tests, none waits.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 6 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Commands and worker processes that tests start import the checkout too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError if the installation lacks entry points of the checkout's pyproject.toml.

    A job in the background of a shell ignores Ctrl-C, and so do the commands that it starts: tests send it to some.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from processor_time import ProcessorTime  # lies with the toys

    config.pluginmanager.register(ProcessorTime(config))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {
        (group, name, value) for group, points in project["entry-points"].items() for name, value in points.items()
    }
    try:
        installed = {(point.group, point.name, point.value) for point in distribution("edgefl-sim").entry_points}
    except PackageNotFoundError:
        installed = set()
    if missing := sorted(name for _, name, _ in wanted - installed):
        raise pytest.UsageError(
            f"edgefl's installation lacks the entry points {', '.join(missing)}: run pip install -e '.[test]' again"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--times``, by which ``.ci/run --slow`` renews the times from which it follows what is slow."""
    parser.addoption("--times", action="store_true", help="write processor times of dear tests to tests/times.json")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` on a machine without a CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """Look for garbage from now on, rarely, and not among what the tests have imported: that takes a second or two."""
    gc.freeze()
    gc.set_threshold(1000, 10, 100)


@pytest.fixture(scope="session", autouse=True)
def folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let each worker of the tests stand in a folder of its own: runs that are given none lie in ``runs/`` there."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("here"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def without_pictures() -> None:
    """Let runs draw no pictures, where the tests have imported what trains."""
    if "torch" in sys.modules:
        from pictures import leave_out

        leave_out()


@pytest.fixture(scope="module", autouse=True)
def few_open_files() -> Iterator[None]:
    """Close what is in cycles of references after a module that left many files open: a process may open 1,024.

    Some 300 stay open, those of the data that edgefl keeps.
    """
    yield
    opened = Path("/proc/self/fd")
    if opened.is_dir() and len(os.listdir(opened)) > 600:
        gc.collect()


@pytest.fixture(scope="module")
def with_pictures() -> Iterator[None]:
    """Let the runs of a module draw theirs."""
    from pictures import drawn

    with drawn():
        yield


@pytest.fixture(scope="session")
def tiny() -> Callable[..., dict[str, Any]]:
    """A function that makes a scenario of half a second: seven clients of three kinds, two blocks of width 16."""

    def make(**sections: Any) -> dict[str, Any]:
        tower = {"blocks": 2, "width": 16, "heads": 2}
        scenario = {
            "name": "tiny",
            "seed": 3,
            "data": {
                "source": "glyphs",
                "clients": {"image": 3, "text": 2, "image-text": 2},
                "samples": 16,
                "validation": 24,
                "test": 24,
            },
            "model": {"image": tower, "text": {**tower, "tokens": 12}},
            "method": "fedavg",
            "schedule": {"name": "end-to-end", "rounds": 2},
            "training": {"batch": 8},
            "round": {"cohort": 1.0},
            "executor": {"name": "inline", "device": "cpu"},
            "evaluation": {"every": 10},
        }
        return {**scenario, **sections}

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium without a window, driven by playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed: pip install '.[test]'")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=300_000)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def layerwise_run(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run shared by many tests: FedCola under a layer-wise schedule of two stages with two rounds each."""
    from pictures import drawn

    import edgefl

    executor = {"name": "inline", "device": "cpu", "checkpoints": 2}
    scenario = tiny(method="fedcola", schedule={"name": "layerwise", "stages": 2, "rounds": 4}, executor=executor)
    with drawn():
        return edgefl.run(scenario, out=tmp_path_factory.mktemp("layerwise") / "run")


@pytest.fixture(scope="session")
def compared_runs(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A comparison shared by many tests: two schedules by two seeds, evaluated after each round.

    Two clients can't take part in end-to-end training.
    """
    from pictures import drawn

    import edgefl

    scenario = tiny(
        method="fedcola",
        data={**tiny()["data"], "validation": 20},
        compare={
            "schedule": [{"name": "end-to-end", "rounds": 2}, {"name": "layerwise", "stages": 2, "rounds": 2}],
            "seed": [3, 4],
        },
        evaluation={"every": 1},
        fleet={"budgets": {"memory": "100 KiB .. 2 MiB"}},
    )
    with drawn():
        return edgefl.run(scenario, out=tmp_path_factory.mktemp("compared") / "runs")


@pytest.fixture(scope="session")
def _resident() -> Iterator[Any]:
    from resident import Resident

    resident = Resident()
    yield resident
    resident.close()


@pytest.fixture
def one_worker(_resident: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in worker processes have one, which serves all tests that ask for it: starting them is what takes long."""
    monkeypatch.setattr("edgefl.training.executors.ProcessExecutor", _resident)


@pytest.fixture(scope="module")
def install() -> Iterator[Callable[[Path], None]]:
    """A function that installs a folder with a package and its dist-info until the end of the test module.

    It puts the folder on the path of this process and of the processes that it starts.
    """
    from edgefl import registry

    with pytest.MonkeyPatch.context() as patch:
        folders: list[Path] = []

        def put(folder: Path) -> None:
            folders.append(folder)
            patch.syspath_prepend(str(folder))
            patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))
            registry.forget()

        yield put
        for name, module in list(sys.modules.items()):
            if any(Path(getattr(module, "__file__", None) or "/").is_relative_to(folder) for folder in folders):
                del sys.modules[name]
    registry.forget()
