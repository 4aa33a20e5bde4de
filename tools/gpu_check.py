"""What only a machine with a CUDA GPU can tell, by one command that goes on where it was interrupted.

    python tools/gpu_check.py [--output runs/gpu-check] [--only STEP] [--again] [--minutes 9] [--device cuda] [--table]

Five steps, each of at most ``--minutes``: the tests marked ``gpu``, the quickstart, predicted against allocated memory
of 25 models, a calibration, and steps per second against a bare loop.  A step runs unless the output folder has its
result, a JSON file that is written when the step ends (of memory, also one for each model); in the end all results are
printed as one Markdown table for docs/explanation/costs.md.  ``--device cpu`` tries all of it without a GPU, but for
the tests.

What runs on the GPU runs in processes of its own, one for each model, so that what one leaves on the GPU, or breaks,
is not the next one's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Json = dict[str, Any]

# --- the models of the memory step ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A client whose memory is predicted and measured: a scenario of declared data, with one kind of interest."""

    name: str
    kind: str
    model: Json
    training: Json
    size: int = 224
    vocabulary: int = 30522
    method: Any = "fedavg"
    schedule: Any = "end-to-end"
    tasks: Json | None = None
    others: tuple[str, ...] = ()
    public: int = 0

    def scenario(self, device: str) -> Json:
        """The scenario; its clients have four batches each."""
        shapes = {
            "image": {"size": self.size, "classes": 10},
            "text": {"vocabulary": self.vocabulary, "classes": 10},
            "audio": {"bins": 128, "frames": 1024, "classes": 10},
        }
        data: Json = {
            "source": "declared",
            "clients": dict.fromkeys((self.kind, *self.others), 1),
            "samples": 4 * self.training["batch"],
            "public": self.public,
            "shapes": shapes,
            "tasks": self.tasks or {},
        }
        schedule = {"name": self.schedule} if isinstance(self.schedule, str) else self.schedule
        return {
            "edgefl": 1,
            "name": "gpu-check",
            "data": data,
            "model": self.model,
            "method": self.method,
            "schedule": {"rounds": 6, **schedule},
            "training": self.training,
            "executor": {"device": device},
        }

    @property
    def stage(self) -> int:
        """The stage that is measured: the last."""
        return int(self.schedule["stages"]) if isinstance(self.schedule, dict) else 1

    @property
    def title(self) -> str:
        """The name, and what of its training decides memory."""
        given = self.training
        optimizer = given.get("optimizer", "adamw") + (" with momentum" if given.get("momentum") else "")
        more = [f"attention {given['attention']}"] if "attention" in given else []
        more += [name for name in ("clip", "checkpointing") if given.get(name)]
        more += [f"accumulation {given['accumulation']}"] if "accumulation" in given else []
        words = [self.name, f"batch {given['batch']}", given.get("precision", "float32")]
        return ", ".join([*words, f"{given.get('implementation', 'fused')} {optimizer}", *more])


def plain(blocks: int, width: int, **more: Any) -> Json:
    """Options of a tower with heads of 64, or of 16 where it is narrow."""
    return {"blocks": blocks, "width": width, "heads": width // (64 if width >= 192 else 16), **more}


VIT, TEXT = plain(4, 64, patch=8), plain(4, 64, tokens=24)
SGD = {"optimizer": "sgd", "momentum": 0.9}
ADAM = {"optimizer": "adam"}
BFLOAT16, FLOAT16 = {"precision": "bfloat16"}, {"precision": "float16"}
FOREACH, LOOP = {"implementation": "foreach"}, {"implementation": "for-loop"}
PAIRS = {"image-text": "classify"}

MODELS = (
    # small ones, every kind of model
    Model("vit 4x64 at 32 px", "image", {"image": VIT}, {"batch": 32}, 32),
    Model("transformer 4x64", "text", {"text": TEXT}, {"batch": 32, "optimizer": "sgd", **LOOP}, vocabulary=8000),
    Model("exits of vit 4x64 at 32 px", "image", {"image": VIT}, {"batch": 64}, 32, method="depthfl"),
    Model("gru 2x128", "text", {"text": {"tower": "gru", "blocks": 2, "hidden": 128}}, {"batch": 32, **SGD}),
    Model("resnet-18 at 32 px", "image", {"image": {"tower": "resnet", "stem": "small"}},
          {"batch": 32, **SGD, **FOREACH}, 32),
    Model("multiway 4x192 at 64 px", "image-text", {"multiway": plain(4, 192, tokens=32)}, {"batch": 16}, 64,
          vocabulary=8000, method="pmcmfl", tasks=PAIRS),
    Model("probabilistic vit and transformer 4x64", "image-text", {"image": VIT, "text": TEXT, "dimension": 64},
          {"batch": 32}, 32, method={"name": "creamfl", "pcme": {}, "server": "federated"}, public=256),
    Model("timm-vit tiny", "image", {"image": {"tower": "timm-vit", "variant": "tiny"}}, {"batch": 8}),
    Model("hf-vit tiny", "image", {"image": {"tower": "hf-vit"}}, {"batch": 16, **BFLOAT16, **FOREACH}),
    Model("bert, MiniLM's size", "text", {"text": {"tower": "bert"}}, {"batch": 32, **LOOP}),
    Model("ast 2x192", "audio", {"audio": {"tower": "ast", **plain(2, 192)}}, {"batch": 4, **ADAM}),
    # as published
    Model("timm-vit small", "image", {"image": {"tower": "timm-vit"}}, {"batch": 32}),
    Model("timm-vit small with FedCola's gates", "image",
          {"image": {"tower": "timm-vit"}, "text": plain(12, 384, tokens=40)}, {"batch": 32, **BFLOAT16},
          method={"name": "fedcola", "complementary": "blocks"}, others=("text",)),
    Model("timm-vit base", "image", {"image": {"tower": "timm-vit", "variant": "base"}},
          {"batch": 16, **BFLOAT16, "accumulation": 2}),
    Model("exits of hf-vit tiny", "image", {"image": {"tower": "hf-vit"}},
          {"batch": 16, "checkpointing": True}, method={"name": "depthfl", "exits": 4}),
    Model("resnet-50", "image", {"image": {"tower": "resnet", "layers": 50}}, {"batch": 32, **SGD}),
    Model("resnet-101", "image", {"image": {"tower": "resnet", "layers": 101}},
          {"batch": 16, **BFLOAT16, **SGD, **FOREACH}),
    Model("distilbert", "text", {"text": {"tower": "distilbert"}}, {"batch": 32, "clip": 1.0}),
    Model("distilbert, 128 tokens", "text", {"text": {"tower": "distilbert", "tokens": 128}},
          {"batch": 32, **BFLOAT16, "attention": "math"}),
    Model("bert 12x768, 128 tokens", "text", {"text": {"tower": "bert", **plain(12, 768), "tokens": 128}},
          {"batch": 16, **FLOAT16, "clip": 1.0}),
    Model("gru, word vectors of 300", "text", {"text": {"tower": "gru"}}, {"batch": 64, **ADAM, **FOREACH}),
    Model("ast 6x768, 1,214 tokens", "audio", {"audio": {"tower": "ast"}}, {"batch": 8, **BFLOAT16}),
    Model("multiway, BEiT-3 base", "image-text", {"multiway": {}}, {"batch": 8, **FLOAT16}, method="pmcmfl",
          tasks=PAIRS),
    Model("probabilistic resnet-18 and gru", "image-text",
          {"image": {"tower": "resnet"}, "text": {"tower": "gru"}, "dimension": 512}, {"batch": 32, **SGD},
          method={"name": "creamfl", "pcme": {}, "server": "federated"}, public=256),
    Model("hf-vit tiny and distilbert, layer-wise stage 6", "image-text",
          {"image": {"tower": "hf-vit"}, "text": {"tower": "distilbert"}, "dimension": 256},
          {"batch": 32, **FOREACH, "attention": "math"}, method="fedmml", schedule={"name": "layerwise", "stages": 6}),
)  # fmt: skip


# --- what runs in a process of its own, and prints JSON ---------------------------------------------------------------


def machine(device: str) -> Json:
    """What the figures are of: the GPU and its driver, or the processor, and versions."""
    from importlib.metadata import version

    import torch

    from edgefl.runs import environment

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here, or a build of torch without CUDA")
    found = environment()
    facts = {"device": device, "edgefl": found["edgefl"], "python": found["python"], "torch": torch.__version__}
    facts |= {name: version(name) for name in ("transformers", "timm")}
    if device == "cpu":
        return {**facts, "name": found["cpu"]}
    seen = torch.cuda.get_device_properties(0)
    return {
        **facts,
        "name": seen.name,
        "memory_bytes": seen.total_memory,
        "capability": f"{seen.major}.{seen.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": driver(),
    }


def driver() -> str:
    """The version of NVIDIA's driver, "unknown" where nvidia-smi isn't found or doesn't tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def memory_of(model: Model, device: str) -> Json:
    """Predicted and measured peak of a client's first steps, in bytes.

    ``allocated_bytes`` is the CUDA allocator's peak less what it held before; on a CPU it is that of torch.profiler's
    memory events.  ``metered_bytes`` is what the live-storage meter saw in the same run, and ``requested_bytes`` (CUDA)
    what was asked of the allocator before it rounded.
    """
    import gc

    import torch

    from edgefl.commands.profile.measure import measure

    def tidy(event: str, facts: Mapping[str, Any]) -> None:
        # called before each of the runs: what the one before left in reference cycles must not go in the middle of it
        gc.collect()

    scenario, kind, stage = model.scenario(device), model.kind, model.stage
    (seen,) = measure(scenario, kind=kind, stage=stage, calibration_seconds=0.1, on_progress=tidy)["rows"]
    predicted, allocated = seen["peak_memory_bytes"], seen["witness_peak_memory_bytes"]
    found: Json = {}
    if device == "cuda":
        allocated = seen["measured_peak_memory_bytes"]
        gc.collect()
        told, what = torch.cuda.memory_stats(), "requested_bytes.all"
        if f"{what}.peak" in told:  # not every allocator tells
            found["requested_bytes"] = told[f"{what}.peak"] - told[f"{what}.current"]
    return {
        "predicted_bytes": predicted,
        "allocated_bytes": allocated,
        "error": predicted / allocated - 1,
        "metered_bytes": sum(seen["measured_memory_bytes"].values()),
        **found,
        "predicted_parts": seen["memory_bytes"],
        "metered_parts": seen["measured_memory_bytes"],
        "steps": seen["steps"],
    }


RUN_SECONDS, RUNS, BATCHES = 0.5, 9, 5
"""What a timed run takes, about; how many pairs of runs there are; how many batches take turns in a run."""
QUICKSTART = {
    "source": "declared",
    "clients": {"image": 12},
    "samples": 1000,
    "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}},
}
"""The shapes of the quickstart's data, which needn't be built to time a step."""


def clients(device: str) -> Iterator[tuple[str, Any, str]]:
    """Name, scenario and kind of the clients whose steps are timed; a CPU has no time for the larger one."""
    from edgefl.scenario import load

    changes = [f"data={json.dumps(QUICKSTART)}", "compare=null", "schedule=end-to-end", "method=fedavg"]
    yield "the quickstart's image client", load("quickstart", changes), "image"
    if device == "cuda":
        large = next(model for model in MODELS if model.name == "timm-vit small")
        yield large.title, load(large.scenario(device)), large.kind


@dataclass(frozen=True)
class Drawn:
    """A source whose batches were drawn before the clock runs; the same ones in every pass."""

    few: Any
    drawn: Sequence[tuple[str, Json]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.few, name)

    def batches(self, pass_: Any, seed: int) -> Iterator[tuple[str, Json]]:
        """All of them."""
        yield from self.drawn


def throughput(device: str) -> Iterator[Json]:
    """Steps per second of the interpreter and of a bare loop, in turns; told anew after each pair of runs."""
    import torch

    from edgefl.work.torch_device import device_of, warm

    torch.set_num_threads(1)
    warm(device_of(device))
    found: Json = {}
    for name, scenario, kind in clients(device):
        for known in compared(scenario, kind, device_of(device)):
            yield {"clients": {**found, name: known}}
        found[name] = known


def compared(scenario: Any, kind: str, place: Any) -> Iterator[Json]:
    """What is known of one client after each pair of runs; ratios are the interpreter's seconds over the loop's."""
    from contextlib import nullcontext
    from dataclasses import replace

    import torch
    from torch.nn import functional as F

    from edgefl import models
    from edgefl.commands.compose import compose
    from edgefl.machine.observed_work import RandomBatches
    from edgefl.schedules import restrict
    from edgefl.work import run
    from edgefl.work.description import DTYPES

    setup = compose(scenario)
    data = setup.clients.client(setup.of_kind(kind)[0])
    work = restrict(setup.method.work(kind, 1), setup.schedule.stage(1)).fitted(data.size)
    work = replace(work, passes=work.passes[:1])
    few = RandomBatches(data, work.model, BATCHES, short=True)
    source = Drawn(few, list(few.batches(work.passes[0], 0)))
    inputs = setup.method.initial(scenario.seed).inputs(work)
    module = models.build(work.model).to(place)
    half = work.precision != "float32"

    def bare(passes: int) -> None:
        module.load_state_dict(inputs)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        module.train()
        for _ in range(passes):
            for _, held in source.drawn:
                batch = {field: value.to(place, non_blocking=True) for field, value in held.items()}
                with torch.autocast(place.type, DTYPES[work.precision]) if half else nullcontext():
                    loss = F.cross_entropy(module.logits(kind, batch[kind]), batch["label"])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    def interpreted(passes: int) -> None:
        run(replace(work, passes=work.passes * passes), inputs, source, module=module, device=place, seed=1)

    def seconds(do: Callable[[int], None], passes: int) -> float:
        finished()
        started = time.perf_counter()
        do(passes)
        finished()
        return time.perf_counter() - started

    def finished() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    bare(1)
    interpreted(1)
    passes = max(1, round(RUN_SECONDS / seconds(bare, 1)))
    steps = passes * len(source.drawn)
    loop, ours = [], []
    for pair in range(1, RUNS + 1):
        loop.append(seconds(bare, passes))
        ours.append(seconds(interpreted, passes))
        ratios = sorted(a / b for a, b in zip(ours, loop, strict=True))
        yield {
            "batch": work.passes[0].batch,
            "steps": steps,
            "pairs": pair,
            "bare_steps_per_second": steps / median(loop),
            "interpreter_steps_per_second": steps / median(ours),
            "ratio": median(ratios),
            "lowest_ratio": ratios[0],
            "highest_ratio": ratios[-1],
        }


def part(name: str, device: str) -> None:
    """Do ``machine``, ``throughput``, or the model of a number, and print what was found, a line of JSON each time."""
    if name == "machine":
        found: Iterator[Json] = iter([machine(device)])
    elif name == "throughput":
        found = throughput(device)
    else:
        found = iter([memory_of(MODELS[int(name)], device)])
    for each in found:
        print(json.dumps(each), flush=True)


# --- steps ------------------------------------------------------------------------------------------------------------

GRACE = 20.0
"""Seconds that a command has for its end when its time is over, before it is killed."""


@dataclass(frozen=True)
class Check:
    """What a step works with; ``deadline`` is of ``time.monotonic``."""

    folder: Path
    device: str
    minutes: float
    deadline: float
    models: int


@dataclass(frozen=True)
class Ended:
    """How a command ended: what it printed, its exit code or None if its time was over, and its last words."""

    out: str
    code: int | None
    said: str

    @property
    def verdict(self) -> Json:
        """What a result says of it: ``failed`` with the reason, ``cut`` if its time was over, or nothing."""
        if self.code is None:
            return {"cut": True}
        return {"failed": f"exit code {self.code}: {self.said}"} if self.code else {}

    def last(self) -> Json:
        """The last line of JSON that it printed whole, or nothing."""
        for line in reversed(self.out.splitlines(keepends=True)):
            if line.endswith("\n") and line.startswith("{"):
                return dict(json.loads(line))
        return {}


def call(check: Check, name: str, *command: str) -> Ended:
    """Run a Python program of this checkout until its end or the step's; ``logs/`` keeps what it printed."""
    place = check.folder / "logs"
    place.mkdir(exist_ok=True)
    out, log = place / f"{name}.out", place / f"{name}.log"
    with out.open("wb") as stdout, log.open("wb") as stderr:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        process = subprocess.Popen([sys.executable, *command], stdout=stdout, stderr=stderr, cwd=ROOT, env=env)
        code: int | None = None
        try:
            code = process.wait(max(0.0, check.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                pass
        finally:
            process.kill()
            process.wait()
    printed, logged = (path.read_text(errors="replace") for path in (out, log))
    lines = [line.strip() for line in (logged.strip() or printed).splitlines() if line.strip()]
    return Ended(printed, code, lines[-1].strip("= ") if lines else "nothing was said")


ENDS = ("passed", "failed", "error", "skipped")


def do_tests(check: Check) -> Json:
    """``pytest -m gpu``, and how each test ended."""
    ended = call(check, "tests", "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "--color=no", "tests/gpu")
    found = re.findall(rf"^(tests/.+?) ({'|'.join(ENDS).upper()})\b", ended.out, re.MULTILINE)
    reasons = re.findall(r"^(?:FAILED|ERROR) (tests/.+)$", ended.out, re.MULTILINE)
    ends = {end: [test for test, how in found if how == end.upper()] for end in ENDS}
    return {"ends": ends, "reasons": reasons, **ended.verdict}


def do_quickstart(check: Check) -> Json:
    """``edgefl run quickstart``: seconds, the final metrics, and how far off predicted memory was, by schedule."""
    from edgefl.errors import RunError
    from edgefl.runs import read_run

    place = check.folder / "quickstart"
    shutil.rmtree(place, ignore_errors=True)
    ended = call(check, "quickstart", "-m", "edgefl.cli", "run", "quickstart", "--set",
                 f"executor.device={check.device}", "--output", str(place))  # fmt: skip
    found: Json = {}
    try:
        runs = read_run(place).runs
    except RunError:  # it ended before it began
        return {"schedules": found, **ended.verdict}
    for label, run in runs.items():
        errors = [c["memory_error"] for c in run.records("clients") if c["memory_error"] is not None]
        found[label] = {
            "finished": run.finished,
            "metrics": run.result.get("metrics", {}),
            "measured_works": len(errors),
            "worst_memory_error": max(errors, key=abs, default=None),
        }
    return {"schedules": found, **ended.verdict}


def do_memory(check: Check) -> Json:
    """Every model that has no file yet, one after the other."""
    folder = check.folder / "memory"
    folder.mkdir(exist_ok=True)
    cut = False
    for index, model in enumerate(MODELS[: check.models]):
        place = folder / f"{index:02d}.json"
        if place.exists():
            continue
        ended = call(check, f"memory-{index:02d}", __file__, "--part", str(index), "--device", check.device)
        if cut := ended.code is None:
            break
        found = {"name": model.name, "title": model.title, **ended.last(), **ended.verdict}
        write(place, found)
        shown = found.get("failed") or (
            f"predicted {mib(found['predicted_bytes'])}, allocated {mib(found['allocated_bytes'])}, "
            f"{percent(found['error'])}"
        )
        print(f"  {index + 1} of {check.models}: {model.title}: {shown}", flush=True)
    rows = [read(place) for place in sorted(folder.glob("*.json"))]
    failed = sum("failed" in row for row in rows)
    return {
        "models": rows,
        "of": len(MODELS),
        **({"cut": True} if cut else {}),
        **({"failed": f"{failed} of {len(rows)} models"} if failed else {}),
    }


def do_calibrate(check: Check) -> Json:
    """``edgefl calibrate``: the profile's numbers."""
    quick = ["--quick"] if check.minutes < 2 else []
    ended = call(check, "calibrate", "-m", "edgefl.cli", "calibrate", "--device", check.device, "--json", "--force",
                 "-o", str(check.folder / "calibrated.yaml"), *quick)  # fmt: skip
    found = json.loads(ended.out) if ended.code == 0 else {"device": None, "notes": []}
    return {"device": found["device"], "notes": found["notes"], "quick": bool(quick), **ended.verdict}


def do_throughput(check: Check) -> Json:
    """What ``throughput`` found by its end, or by the step's."""
    ended = call(check, "throughput", __file__, "--part", "throughput", "--device", check.device)
    return {"clients": ended.last().get("clients", {}), **ended.verdict}


@dataclass(frozen=True)
class Step:
    """A step: what it does, and the minutes that it takes about; ``no_cpu`` says why it makes no sense on a CPU."""

    what: str
    do: Callable[[Check], Json]
    minutes: Mapping[str, float]
    no_cpu: str = ""


STEPS = {
    "tests": Step("pytest -m gpu", do_tests, {"cuda": 5}, "its tests are skipped without a CUDA device"),
    "quickstart": Step("edgefl run quickstart", do_quickstart, {"cuda": 3, "cpu": 3}),
    "memory": Step("predicted against allocated memory", do_memory, {"cuda": 6, "cpu": 40}),
    "calibrate": Step("edgefl calibrate", do_calibrate, {"cuda": 1.5, "cpu": 1.5}),
    "throughput": Step("steps a second against a bare loop", do_throughput, {"cuda": 1, "cpu": 0.5}),
}


def due(name: str, check: Check, named: bool) -> bool:
    """Whether a step has no result yet.  One whose time was over goes on where it is named, memory also with models
    that were not asked for before."""
    result = read(check.folder / f"{name}.json")
    if not result or (named and result.get("cut")):
        return True
    return name == "memory" and not result.get("cut") and len(result["models"]) < check.models


def forget(name: str, folder: Path) -> None:
    """Remove a step's result."""
    (folder / f"{name}.json").unlink(missing_ok=True)
    if name == "memory":
        shutil.rmtree(folder / "memory", ignore_errors=True)


def read(path: Path) -> Json:
    """A JSON file, or nothing if it isn't there."""
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def write(path: Path, value: Json) -> None:
    """A JSON file, whole or not at all."""
    from edgefl.runs.durable import replace_file

    replace_file(path, json.dumps(value, indent=1).encode())


# --- the table --------------------------------------------------------------------------------------------------------


def row(what: str, measured: str = "", predicted: str = "", error: str = "") -> str:
    """A line of the table."""
    cells = [cell.replace("|", "/") for cell in (what, predicted, measured, error)]
    return " ".join(f"| {' | '.join(cells)} |".split())


def percent(error: float) -> str:
    """A share with its sign."""
    return f"{100 * error:+.2f} %"


def mib(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / 2**20:,.2f} MiB"


def rows_of_tests(result: Json) -> Iterator[str]:
    """How many tests ended how, and those that failed."""
    counts = [f"{len(tests)} {end}" for end, tests in result["ends"].items() if tests]
    yield row("tests", ", ".join(counts) or "none ended")
    for reason in result["reasons"]:
        yield row("tests", f"failed: {reason}")


def rows_of_quickstart(result: Json) -> Iterator[str]:
    """The whole, and each schedule."""
    yield row("quickstart, three schedules", f"{result['seconds']:.0f} s")
    for label, run in result["schedules"].items():
        metrics = [
            f"{kind} {name.replace('_', ' ')} {run['metrics'][kind][name]:.3f}"
            for kind, name in (("image", "balanced_accuracy"), ("text", "balanced_accuracy"), ("image-text", "r@10"))
            if kind in run["metrics"]
        ]
        worst = run["worst_memory_error"]
        error = "" if worst is None else f"memory {percent(worst)} at worst, {run['measured_works']} works"
        yield row(f"quickstart, {label}", ", ".join(metrics) if run["finished"] else "not finished", error=error)


def rows_of_memory(result: Json) -> Iterator[str]:
    """Each model, the median error and the worst."""
    errors = [model["error"] for model in result["models"] if "failed" not in model]
    for model in result["models"]:
        what = f"memory: {model['title']}"
        if "failed" in model:
            yield row(what, f"failed: {model['failed']}")
        else:
            yield row(what, mib(model["allocated_bytes"]), mib(model["predicted_bytes"]), percent(model["error"]))
    if errors:
        summary = f"median {100 * median(map(abs, errors)):.2f} %, worst {percent(max(errors, key=abs))}"
        yield row(f"memory: {len(errors)} of {result['of']} models", error=summary)


def rows_of_calibrate(result: Json) -> Iterator[str]:
    """The rates of the profile."""
    from edgefl import units

    values = result["device"]["values"] if result["device"] else {}
    what = "calibrate, quick" if result["quick"] else "calibrate"
    for name in ("flops", "peak_flops", "bfloat16_flops", "float16_flops", "memory_bytes"):
        show = units.show_bytes_per_second if name == "memory_bytes" else units.show_rate
        if fact := values.get(f"{name}_per_second"):
            spread = f"{show(fact['value'])} ({show(fact['low'])} to {show(fact['high'])})"
            yield row(f"{what}: {name}_per_second", spread)
    if fact := values.get("seconds_per_operator"):
        yield row(f"{what}: seconds_per_operator", units.show_seconds(fact["value"]))


def rows_of_throughput(result: Json) -> Iterator[str]:
    """Each client."""
    for name, seen in result["clients"].items():
        ours, loop = seen["interpreter_steps_per_second"], seen["bare_steps_per_second"]
        ratio = f"{seen['ratio']:.2f} of its time ({seen['lowest_ratio']:.2f} to {seen['highest_ratio']:.2f})"
        yield row(f"steps a second: {name}", f"{ours:.1f}; bare loop {loop:.1f}: {ratio}, {seen['pairs']} pairs")


ROWS: dict[str, Callable[[Json], Iterator[str]]] = {
    "tests": rows_of_tests,
    "quickstart": rows_of_quickstart,
    "memory": rows_of_memory,
    "calibrate": rows_of_calibrate,
    "throughput": rows_of_throughput,
}


VERSIONS = ("driver", "cuda", "cudnn", "torch", "transformers", "timm", "python", "edgefl")


def table(folder: Path) -> str:
    """All results as one Markdown table, under a line that says what they are of."""
    results = {name: result for name in STEPS if (result := read(folder / f"{name}.json"))}
    facts = read(folder / "machine.json")
    dates = sorted({result["date"] for result in results.values()})
    versions = [f"{name} {facts[name]}" for name in VERSIONS if name in facts]
    name = facts["name"] + ("" if facts["device"] == "cuda" else " (a CPU, no GPU: memory by torch.profiler)")
    lines = [f"{', '.join([name, *versions])}; {' to '.join(dates[:1] + dates[1:][-1:])}.", ""]
    lines += ["| what | predicted | measured | error |", "|---|---|---|---|"]
    for step in STEPS:
        lines += rows_of(step, results.get(step))
    return "\n".join(lines)


def rows_of(step: str, result: Json | None) -> Iterator[str]:
    """A step's lines, and whether it came to its end."""
    if result is None:
        yield row(step, "no result yet")
    elif "skipped" in result:
        yield row(step, f"skipped: {result['skipped']}")
    else:
        yield from ROWS[step](result)
        if "failed" in result:
            yield row(step, f"failed: {result['failed']}")
        if "cut" in result:
            yield row(step, f"stopped after {result['minutes']:g} minutes, before its end")


# --- the command ------------------------------------------------------------------------------------------------------


def done(result: Json) -> str:
    """How a step ended, in a line."""
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    how = "done"
    if "failed" in result:
        how = f"failed: {result['failed']}; --again repeats it"
    elif "cut" in result:
        how = "stopped, its time is over; what there is by now is kept, --only goes on with it"
    return f"{how} ({result['seconds']:.0f} s)"


def run_step(name: str, check: Check) -> Json:
    """Do a step and keep its result."""
    started = time.monotonic()
    step = STEPS[name]
    result = step.do(check) if check.device == "cuda" or not step.no_cpu else {"skipped": step.no_cpu}
    seconds = time.monotonic() - started
    result |= {"seconds": seconds, "minutes": check.minutes, "date": datetime.date.today().isoformat()}
    write(check.folder / f"{name}.json", result)
    return result


def refused(chosen: argparse.Namespace) -> str:
    """Why these arguments can't be followed, in a line; empty if they can."""
    if chosen.only is not None and chosen.only not in STEPS:
        return f"--only {chosen.only}: there is no such step; there are {', '.join(STEPS)}"
    if not 1 <= chosen.models <= len(MODELS):
        return f"--models {chosen.models}: 1 to {len(MODELS)}"
    if not chosen.minutes > 0:
        return f"--minutes {chosen.minutes:g}: more than 0"
    if chosen.table and not read(Path(chosen.output) / "machine.json"):
        return f"{chosen.output} holds no results"
    return ""


def prepared(chosen: argparse.Namespace, folder: Path) -> str:
    """Note what machine this is.  Says in a line why the folder can't be used, if it can't."""
    folder.mkdir(parents=True, exist_ok=True)
    check = Check(folder, chosen.device, chosen.minutes, time.monotonic() + 300, chosen.models)
    ended = call(check, "machine", __file__, "--part", "machine", "--device", chosen.device)
    here, noted = ended.last(), read(folder / "machine.json")
    if not here:
        return f"{ended.said}; --device cpu tries what a CPU can do"
    if chosen.again and chosen.only is None:
        for name in STEPS:
            forget(name, folder)
    elif noted and noted != here:
        other = [
            f"{name} {noted.get(name)}, here {here.get(name)}" for name in here if noted.get(name) != here.get(name)
        ]
        return f"{folder} has results of another machine or version ({'; '.join(other)}): another --output, or --again"
    write(folder / "machine.json", here)
    return ""


def main() -> int:
    """Do what is left to do, and print the table; 0, or 1 if a step failed, 2 for what the caller can mend."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", default="runs/gpu-check", metavar="DIR", help="folder of the results")
    parser.add_argument("--only", metavar="STEP", help=f"one step: {', '.join(STEPS)}")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--minutes", type=float, default=9.0, metavar="M", help="most minutes of a step")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries it without a GPU")
    parser.add_argument("--models", type=int, default=len(MODELS), metavar="N", help="the first N models of memory")
    parser.add_argument("--table", action="store_true", help="only print the table of what there is")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part is not None:
        part(chosen.part, chosen.device)
        return 0
    folder = Path(chosen.output).resolve()
    if why := refused(chosen) or ("" if chosen.table else prepared(chosen, folder)):
        print(f"gpu_check: {why}", file=sys.stderr)
        return 2
    if not chosen.table:
        do_all(chosen, folder)
        print()
    print(table(folder))
    return int(any("failed" in read(folder / f"{name}.json") for name in STEPS))


def do_all(chosen: argparse.Namespace, folder: Path) -> None:
    """Every step that was asked for and is due."""
    for index, name in enumerate(STEPS, 1):
        if chosen.only not in (None, name):
            continue
        if chosen.again:
            forget(name, folder)
        deadline = time.monotonic() + 60 * chosen.minutes
        check = Check(folder, chosen.device, chosen.minutes, deadline, chosen.models)
        head = f"{index} of {len(STEPS)}, {name}: {STEPS[name].what}"
        if not due(name, check, chosen.only is not None):
            print(f"{head}: has a result", flush=True)
            continue
        if about := STEPS[name].minutes.get(chosen.device):
            head += f": about {min(about, chosen.minutes):g} minutes, at most {chosen.minutes:g}"
        print(head, flush=True)
        print(f"  {done(run_step(name, check))}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("gpu_check: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
