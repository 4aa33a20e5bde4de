"""The Markdown table of the results of ``gpu_check.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import measuring

from gpu.results import Json, read


def row(what: str, measured: str = "", predicted: str = "", error: str = "") -> list[str]:
    """One row of the table."""
    return [what, predicted, measured, error]


def percent(error: float) -> str:
    """A share as a percentage with its sign."""
    return f"{100 * error:+.2f} %"


def mib(size: float) -> str:
    """Bytes as text in MiB."""
    return f"{size / 2**20:,.2f} MiB"


def rows_of_tests(result: Json) -> Iterator[list[str]]:
    """Number of tests by outcome, and the reasons of failures."""
    counts = [f"{len(tests)} {end}" for end, tests in result["ends"].items() if tests]
    yield row("tests", ", ".join(counts) or "none ended")
    for reason in result["reasons"]:
        yield row("tests", f"failed: {reason}")


def rows_of_quickstart(result: Json) -> Iterator[list[str]]:
    """Seconds of the command, then a row for each schedule."""
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


def rows_of_memory(result: Json) -> Iterator[list[str]]:
    """A row for each model, then the median and the worst error."""
    errors = [model["error"] for model in result["models"] if "failed" not in model]
    for model in result["models"]:
        title = f"memory: {model['title']}"
        if "failed" in model:
            yield row(title, f"failed: {model['failed']}")
        else:
            yield row(title, mib(model["allocated_bytes"]), mib(model["predicted_bytes"]), percent(model["error"]))
    if errors:
        summary = f"median {100 * median(map(abs, errors)):.2f} %, worst {percent(max(errors, key=abs))}"
        yield row(f"memory: {len(errors)} of {result['of']} models", error=summary)
    tries = [each for model in result["models"] for each in model.get("verdicts", ())]
    if tries:
        right = sum(each["right"] for each in tries)
        yield row(f"memory: verdicts just above and below the edge, {right} of {len(tries)} right")


def rows_of_calibrate(result: Json) -> Iterator[list[str]]:
    """Rates of the calibrated profile."""
    from edgefl import units

    values = result["device"]["values"] if result["device"] else {}
    title = "calibrate, quick" if result["quick"] else "calibrate"
    for name in ("flops", "peak_flops", "bfloat16_flops", "float16_flops", "memory_bytes"):
        show = units.show_bytes_per_second if name == "memory_bytes" else units.show_rate
        if fact := values.get(f"{name}_per_second"):
            spread = f"{show(fact['value'])} ({show(fact['low'])} to {show(fact['high'])})"
            yield row(f"{title}: {name}_per_second", spread)
    if fact := values.get("seconds_per_operator"):
        yield row(f"{title}: seconds_per_operator", units.show_seconds(fact["value"]))


def rows_of_throughput(result: Json) -> Iterator[list[str]]:
    """A row for each timed client."""
    for name, timed in result["clients"].items():
        interpreter, loop = timed["interpreter_steps_per_second"], timed["bare_steps_per_second"]
        ratio = f"{timed['ratio']:.2f} of its time ({timed['lowest_ratio']:.2f} to {timed['highest_ratio']:.2f})"
        yield row(
            f"steps a second: {name}", f"{interpreter:.1f}; bare loop {loop:.1f}: {ratio}, {timed['pairs']} pairs"
        )


def rows_of_packed(result: Json) -> Iterator[list[str]]:
    """A row for each number of workers."""
    for name, client in result["clients"].items():
        for timed in client["workers"]:
            workers, on = f"{timed['processes']} of {timed['workers']} workers", ", ".join(timed["devices"])
            used = "" if timed["utilisation"] is None else f", {timed['utilisation']:.0f} % utilisation"
            shares = f"{timed['share_of_matmul_ceiling']:.1%} of matmul, {timed['share_of_copy_ceiling']:.1%} of copy"
            measured = (
                f"{timed['steps_per_second']:.1f} steps/s ({client['bare_steps_per_second']:.1f} by a bare loop), "
                f"{timed['clients_per_second']:.2f} clients/s, {shares}{used}"
            )
            error = "ran out of memory" if timed["ran_out"] else "" if timed["same_bytes"] else "other bytes"
            yield row(f"packed: {name}, {workers} on {on}", measured, mib(timed["peak_memory_bytes"]), error)


ROWS: dict[str, Callable[[Json], Iterator[list[str]]]] = {
    "tests": rows_of_tests,
    "quickstart": rows_of_quickstart,
    "memory": rows_of_memory,
    "calibrate": rows_of_calibrate,
    "throughput": rows_of_throughput,
    "packed": rows_of_packed,
}
"""Functions that make the rows of a step's result, in the order of the steps."""

VERSIONS = ("driver", "cuda", "cudnn", "torch", "transformers", "timm", "python", "edgefl")


def table(folder: Path) -> str:
    """All results as one Markdown table, under a line with the machine, the versions and the dates."""
    results = {name: result for name in ROWS if (result := read(folder / f"{name}.json"))}
    facts = read(folder / "machine.json")
    dates = sorted({result["date"] for result in results.values()})
    versions = [f"{name} {facts[name]}" for name in VERSIONS if name in facts]
    name = facts["name"] + ("" if facts["device"] == "cuda" else " (a CPU, no GPU: memory by torch.profiler)")
    head = f"{', '.join([name, *versions])}; {' to '.join(dates[:1] + dates[1:][-1:])}."
    rows = [each for step in ROWS for each in rows_of(step, results.get(step))]
    return f"{head}\n\n{measuring.table(('what', 'predicted', 'measured', 'error'), rows, numbers=False)}"


def rows_of(step: str, result: Json | None) -> Iterator[list[str]]:
    """Rows of a step, and a row if it failed or ran out of time."""
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
