"""Summary of a run from its records: participation, costs and metrics, as plain data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefl.errors import RunError

if TYPE_CHECKING:  # edgefl.runs imports torch, which is slow and which other tables don't need
    from edgefl.runs import Run

Record = Mapping[str, Any]
Samples = Mapping[str, Mapping[str, int]]
"""``{split: {kind: samples}}`` of the server's evaluation data."""

_READ = (
    "client", "kind", "device", "stage", "samples", "outcome", "peak_memory_bytes", "measured_peak_memory_bytes",
    "memory_error", "forward_flops", "backward_flops", "measured_forward_flops", "measured_backward_flops",
    "download_bytes", "upload_bytes", "virtual_seconds", "energy_joules",
)  # fmt: skip
"""Fields that are read from a client's record."""

SHOWN_METRICS = (
    "accuracy",
    "balanced_accuracy",
    "soft_score",
    "r@1",
    "r@10",
    "r@1_sum_folds",
    "perplexity",
    "token_accuracy",
)
"""edgefl's metrics that tables show if a run has them, in their order.  Records hold more."""

_RECORDED = re.compile(r"macro_(precision|recall|f1)|top\d+_accuracy|matched@\d+|(\w+_to_\w+_)?r@\d+(_sum|_fold)?")
"""edgefl's other metrics, which only records hold."""


def own_metrics(found: Iterable[str]) -> list[str]:
    """Of these metrics those of steps of one's own, without those of a pattern (``f1[image]``)."""
    return [
        name for name in dict.fromkeys(found)
        if name not in SHOWN_METRICS and "[" not in name and not _RECORDED.fullmatch(name)
    ]  # fmt: skip


def shown_metrics(found: Iterable[str]) -> list[str]:
    """Of these metrics those that tables show: ``SHOWN_METRICS``, then one's own; where there are none of both, all."""
    names = [name for name in dict.fromkeys(found) if "[" not in name]
    return [*(name for name in SHOWN_METRICS if name in names), *own_metrics(names)] or names


def summary(run: Run, samples_of: Callable[[Run], Samples] = lambda _: {}) -> dict[str, Any]:
    """The contents of the tables after a run, as plain data.

    Has ``folder``, ``finished``, ``runs`` by label, and for a comparison ``compared`` (see ``compared``).
    ``samples_of`` returns the evaluation samples of a run; it is called if the run's folder doesn't hold them.
    """
    from edgefl.runs import is_comparison

    result: dict[str, Any] = {"folder": str(run.path), "finished": run.finished}
    if is_comparison(run.path):
        runs = {label: facts_of(member, label, samples_of) for label, member in run.runs.items()}
        result |= {"runs": runs, "compared": compared(runs)}
    else:
        name = str(run.scenario["name"])
        result["runs"] = {name: facts_of(run, name, samples_of)}
    for facts in result["runs"].values():
        for name in _ONLY_COMPARED:
            del facts[name]
    return result


_ONLY_COMPARED = ("eligible_clients", "updates_of_clients", "same_clients")
"""Fields that only ``compared`` uses; ``summary`` leaves them out."""


def facts_of(run: Run, label: str = "", samples_of: Callable[[Run], Samples] = lambda _: {}) -> dict[str, Any]:
    """The summary of one run, finished or not; ``samples_of`` as for ``summary``.

    Raises RunError for records that lack a field or hold another kind of value than edgefl writes.
    """
    try:
        return _facts_of(run, label, samples_of)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunError(damage(run, error)) from error


_OF_ROUNDS = (
    "round", "stage", "clients", "eligible", "excluded", "samples", "outcome", "outcomes", "metrics", "selected",
    "finished", "late", "failed", "unavailable", "server_seconds", "started_virtual_seconds", "virtual_seconds",
)  # fmt: skip
_OF_VERDICTS = ("client", "clients", "kind", "device", "stage", "round", "samples", "eligible", "binding")


def damage(run: Run, error: Exception) -> str:
    """What is wrong with a run's records: the first record that lacks a field, otherwise the error itself."""
    from edgefl.runs import SUMMED

    fields = {"rounds": (*_OF_ROUNDS, *SUMMED), "clients": _READ, "eligibility": _OF_VERDICTS}
    for table, names in fields.items():
        for number, record in enumerate(run.records(table), 1):  # type: ignore[arg-type]
            # records of evaluations on clients have other fields
            if "when" not in record and (lacking := [name for name in names if name not in record]):
                return (
                    f"{run.path / table}.jsonl:{number}: this record has no field {lacking[0]!r}; the file was changed"
                )
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return f"{run.path}: its files hold other values than edgefl writes: {reason}"


def _facts_of(run: Run, label: str, samples_of: Callable[[Run], Samples]) -> dict[str, Any]:
    rounds, verdicts = run.records("rounds"), run.records("eligibility")
    # only some fields are kept: all records of a large run's clients don't fit into memory
    clients = [
        {name: record[name] for name in _READ} | ({"part": record["part"]} if "part" in record else {})
        for record in run.flights()
    ]
    scenario = run.scenario
    kinds = list(rounds[0]["clients"]) if rounds else [k for k, n in scenario["data"]["clients"].items() if n]
    scored = [r for r in rounds if r["metrics"]]
    last = bool(scored) and run.finished and scored[-1] is rounds[-1]
    split = scenario["evaluation"]["final" if last else "split"]
    evaluation = run.evaluation or evaluation_of(run, samples_of(run))
    return {
        "label": label,
        "scenario": scenario["name"],
        "method": scenario["method"]["name"],
        "schedule": scenario["schedule"]["name"],
        "finished": run.finished,
        "rounds": len(rounds),
        "stopped": (rounds[-1].get("stopped") or {}).get("text") if rounds else None,
        "best": run.best,
        "outcomes": dict(Counter(r["outcome"] for r in rounds)),
        "diverged_rounds": [r["round"] for r in rounds if r.get("diverged")],
        "flights": dict(sum((Counter(r["outcomes"]) for r in rounds), Counter[str]())),
        "trained": scenario["training"].get("mode", "real") == "real",
        "virtual_seconds": rounds[-1]["started_virtual_seconds"] + rounds[-1]["virtual_seconds"] if rounds else 0.0,
        "totals": _totals(rounds),
        "stages": _stages(rounds, verdicts),
        "costs": _costs(clients),
        "kinds": {
            kind: _participation([v for v in verdicts if v["kind"] == kind], [c for c in clients if c["kind"] == kind])
            for kind in kinds
        },
        "everyone": _participation(verdicts, clients),
        "devices": {
            name: _participation(
                [v for v in verdicts if v["device"] == name], [c for c in clients if c["device"] == name]
            )
            for name in sorted({v["device"] for v in verdicts})
        },
        "metrics_round": scored[-1]["round"] if scored else None,
        "metrics_split": split,
        "metrics": {kind: dict(values) for kind, values in scored[-1]["metrics"].items()} if scored else {},
        "chance": evaluation["chance"][split],
        "test_samples": dict(evaluation["samples"].get(split, {})),
        **_client_metrics(rounds),
        "eligible_clients": {v["client"]: v["samples"] for v in verdicts if v["eligible"]},
        "updates_of_clients": Counter(r["client"] for r in clients if r["outcome"] == "finished"),
        "same_clients": {name: scenario[name] for name in ("seed", "data", "fleet")},
    }


def _client_metrics(rounds: Sequence[Record]) -> dict[str, Any]:
    """The last evaluation on the clients' own samples, if there was one: its round and its groups."""
    last = next((r for r in reversed(rounds) if r.get("client_metrics")), None)
    return {} if last is None else {"client_metrics_round": last["round"], "client_metrics": last["client_metrics"]}


def _totals(rounds: Sequence[Record]) -> dict[str, Any]:
    from edgefl.runs import CARBON, SUMMED

    names: tuple[str, ...] = (*SUMMED, "server_seconds", "selected", "finished", "late", "failed", "unavailable")
    names += tuple(name for name in CARBON if rounds and name in rounds[0])
    totals = {name: sum(r[name] for r in rounds) for name in names}
    updates = totals["selected"]
    totals["bytes_per_client_round"] = (
        (totals["download_bytes"] + totals["upload_bytes"]) / updates if updates else None
    )
    totals["energy_joules_per_client_round"] = totals["energy_joules"] / updates if updates else None
    return totals


def _stages(rounds: Sequence[Record], verdicts: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per stage: its rounds, eligibility by kind, and the samples and classes of excluded clients.

    ``eligible`` is the lowest count of any round in the stage, ``most_eligible`` the highest.  ``refused_by`` and
    ``refused_devices`` count the others by binding budget and by device, ``refused_memory_by`` those of memory by whose
    word it is.
    """
    stages = []
    for stage in sorted({r["stage"] for r in rounds}):
        stage_rounds = [r for r in rounds if r["stage"] == stage]
        numbers = {r["round"] for r in stage_rounds}
        kinds = {}
        for kind in dict.fromkeys(k for r in stage_rounds for k in r["clients"]):
            # later verdicts replace earlier ones, so that each client is counted once
            refused = {
                v["client"]: v
                for v in verdicts
                if v["kind"] == kind and not v["eligible"] and (v["stage"] == stage or v["round"] in numbers)
            }
            eligible = [r["eligible"].get(kind, 0) for r in stage_rounds if kind in r["clients"]]
            kinds[kind] = {
                "clients": max(r["clients"].get(kind, 0) for r in stage_rounds),
                "eligible": min(eligible),
                "most_eligible": max(eligible),
                "refused_by": _count_clients_by(refused.values(), "binding"),
                # records of run formats 1 and 2 don't tell whose word the memory budget is
                "refused_memory_by": _count_clients_by(
                    (v for v in refused.values() if v["binding"] == "memory" and "memory_limit" in v), "memory_limit"
                ),
                "refused_devices": _count_clients_by(refused.values(), "device"),
            }
        worst = max(stage_rounds, key=lambda r: r["excluded"]["samples"])
        excluded = {**worst["excluded"], "of_samples": sum(worst["samples"].values())}
        stages.append({"stage": stage, "rounds": len(stage_rounds), "kinds": kinds, "excluded": excluded})
    return stages


def _count_clients_by(verdicts: Iterable[Record], name: str) -> dict[str, int]:
    """Number of clients by the value of a field of their verdicts, in descending order."""
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts[str(verdict[name])] += verdict["clients"]
    return dict(counts.most_common())


def _costs(clients: Sequence[Record]) -> list[dict[str, Any]]:
    """Costs of the clients that took part, by stage and kind: the largest peak memory, and means of a client's round.

    Errors are the largest of the metered rounds, by absolute value.
    """
    groups: dict[tuple[int, str], list[Record]] = {}
    for record in clients:
        groups.setdefault((record["stage"], record["kind"]), []).append(record)
    order = {kind: i for i, kind in enumerate(dict.fromkeys(r["kind"] for r in clients))}
    rows = []
    for (stage, kind), records in sorted(groups.items(), key=lambda group: (group[0][0], order[group[0][1]])):
        metered = [r for r in records if r["measured_peak_memory_bytes"] is not None]
        rows.append(
            {
                "stage": stage,
                **({"part": records[0]["part"]} if "part" in records[0] else {}),
                "kind": kind,
                "client_rounds": len(records),
                "metered": len(metered),
                "peak_memory_bytes": max(r["peak_memory_bytes"] for r in records),
                "measured_peak_memory_bytes": max((r["measured_peak_memory_bytes"] for r in metered), default=None),
                "memory_error": max((r["memory_error"] for r in metered), key=abs, default=None),
                "flops": _mean(_flops(r) for r in records),
                "measured_flops": _mean(_flops(r, "measured_") for r in metered),
                "flops_error": max(
                    (_flops(r) / _flops(r, "measured_") - 1 for r in metered if _flops(r, "measured_")),
                    key=abs,
                    default=None,
                ),
                **{
                    name: _mean(r[name] for r in records)
                    for name in ("download_bytes", "upload_bytes", "virtual_seconds", "energy_joules")
                },
            }
        )
    return rows


def _flops(record: Record, prefix: str = "") -> float:
    return float(record[f"{prefix}forward_flops"] + record[f"{prefix}backward_flops"])


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def _participation(verdicts: Sequence[Record], clients: Sequence[Record]) -> dict[str, Any]:
    """Counts of the clients of these verdicts, and their samples: always eligible, ever eligible, took part.

    In a large fleet one verdict stands for several clients, so single clients can't be followed from stage to stage.
    There, clients "ever" eligible are those of the stage that admits most, "always" those of the stage that admits
    fewest.
    """
    if any(v["clients"] > 1 for v in verdicts):
        return _participation_of_many(verdicts, clients)
    samples = {v["client"]: v["samples"] for v in verdicts}
    ever = {v["client"] for v in verdicts if v["eligible"]}
    refused = {v["client"] for v in verdicts if not v["eligible"]}
    updates = Counter(r["client"] for r in clients if r["outcome"] == "finished" and r["client"] in samples)
    return {
        "clients": len(samples),
        "samples": sum(samples.values()),
        "eligible_always": len(samples.keys() - refused),
        "eligible_ever": len(ever),
        "eligible_samples_ever": sum(samples[c] for c in ever),
        "took_part": len(updates),
        "took_part_samples": sum(samples[c] for c in updates),
        "updates": updates.total(),
    }


def _participation_of_many(verdicts: Sequence[Record], clients: Sequence[Record]) -> dict[str, Any]:
    by_stage: dict[int, list[int]] = {}  # clients, samples, eligible clients, eligible samples
    first_round: dict[str, int] = {}
    for v in verdicts:
        # where clients train one part after another, count each client once: in the first round of its kind
        if "part" in v and first_round.setdefault(v["kind"], v["round"]) != v["round"]:
            continue
        sums = by_stage.setdefault(0 if "part" in v else v["stage"], [0, 0, 0, 0])
        for index, number in enumerate((v["clients"], v["clients"] * v["samples"])):
            sums[index] += number
            sums[index + 2] += number * v["eligible"]
    samples = {c["client"]: c["samples"] for c in clients if c["outcome"] == "finished"}
    return {
        "clients": max(sums[0] for sums in by_stage.values()),
        "samples": max(sums[1] for sums in by_stage.values()),
        "eligible_always": min(sums[2] for sums in by_stage.values()),
        "eligible_ever": max(sums[2] for sums in by_stage.values()),
        "eligible_samples_ever": max(sums[3] for sums in by_stage.values()),
        "took_part": len(samples),
        "took_part_samples": sum(samples.values()),
        "updates": sum(c["outcome"] == "finished" for c in clients),
    }


def evaluation_of(run: Run, samples: Samples) -> dict[str, Any]:
    """The value of ``run.evaluation``, computed for a run whose server has these evaluation samples."""
    evaluation = run.scenario["evaluation"]
    splits = dict.fromkeys((evaluation["split"], evaluation["final"]))
    return {
        "samples": samples,
        "chance": {split: _chance(run.models, evaluation, samples.get(split, {})) for split in splits},
    }


def _chance(
    models: Mapping[str, Any], evaluation: Mapping[str, Any], samples: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """Chance level by kind and metric: 1/classes, k/pairs for recall at k if the number of pairs is known, and for
    perplexity the size of the vocabulary."""
    chance: dict[str, dict[str, float]] = {}
    for kind, model in models.items():
        heads = [*model.get("towers", {}).values(), model.get("joint") or {}]
        if vocabulary := next((head["vocabulary"] for head in heads if head.get("predicts")), 0):
            chance[kind] = {"perplexity": float(vocabulary), "token_accuracy": 1 / vocabulary}
            continue
        classes: set[int] = {head["classes"] for head in heads if head.get("classes")}
        if "-" in kind and not classes:
            if kind not in samples:
                continue
            ranked = min(evaluation["pairs"], samples[kind])
            if rates := (evaluation.get("missing") or {}).get(kind):
                from edgefl.data.missing import lacking_in_a_test

                ranked = int((lacking_in_a_test(kind, rates, ranked) == 0).sum())  # only complete pairs are ranked
            ranked = max(ranked, 1)
            chance[kind] = {f"r@{k}": min(k / ranked, 1.0) for k in (1, 5, 10)}
            if ranked > (fold := evaluation.get("fold", ranked)):
                chance[kind]["r@1_sum_folds"] = 2 / ranked + 2 / fold
            continue
        if len(classes) == 1:
            (count,) = classes
            chance[kind] = {"accuracy": 1 / count, "balanced_accuracy": 1 / count}
    return chance


# --- several runs ----------------------------------------------------------------------------------------------------


def compared(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Comparison of runs: ``rows``, one per run, and ``gained`` by label, relative to the run named ``reference``.

    ``gained`` counts the clients that a run admits in some stage and the reference run in none, with their samples and
    updates.  The reference is the run with the end-to-end schedule if there is one, otherwise the first run.
    """
    rows = [_compared_row(label, facts) for label, facts in runs.items() if facts["rounds"]]
    result: dict[str, Any] = {"rows": rows}
    labels = [label for label, facts in runs.items() if facts["rounds"]]
    if len(labels) < 2:
        return result
    reference = next((label for label in labels if runs[label]["schedule"] == "end-to-end"), labels[0])
    base = runs[reference]
    gained = {}
    for label in labels:
        # client indices are comparable only if seed, data and fleet are the same
        if label == reference or runs[label]["same_clients"] != base["same_clients"]:
            continue
        new = runs[label]["eligible_clients"].keys() - base["eligible_clients"].keys()
        everyone = runs[label]["everyone"]
        gained[label] = {
            "clients": len(new),
            "of_clients": everyone["clients"],
            "samples": sum(runs[label]["eligible_clients"][c] for c in new),
            "of_samples": everyone["samples"],
            "took_part": sum(c in runs[label]["updates_of_clients"] for c in new),
            "updates": sum(runs[label]["updates_of_clients"][c] for c in new),
        }
    return {**result, "reference": reference, "gained": gained}


def _compared_row(label: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    everyone, totals = facts["everyone"], facts["totals"]
    hardest = {
        kind: min(stage["kinds"][kind]["eligible"] for stage in facts["stages"] if kind in stage["kinds"])
        for kind in facts["kinds"]
    }
    return {
        "label": label,
        "eligible_at_hardest_stage": hardest,
        "eligible_ever": {kind: facts["kinds"][kind]["eligible_ever"] for kind in facts["kinds"]},
        "clients": {kind: facts["kinds"][kind]["clients"] for kind in facts["kinds"]},
        "took_part_share": everyone["took_part"] / max(everyone["clients"], 1),
        "took_part_samples_share": everyone["took_part_samples"] / max(everyone["samples"], 1),
        "updates": totals["finished"],
        "peak_memory_bytes": {
            kind: max((c["peak_memory_bytes"] for c in facts["costs"] if c["kind"] == kind), default=None)
            for kind in facts["kinds"]
        },
        "bytes_per_client_round": totals["bytes_per_client_round"],
        "energy_joules_per_client_round": totals["energy_joules_per_client_round"],
        "total_bytes": totals["download_bytes"] + totals["upload_bytes"],
        "flops": totals["forward_flops"] + totals["backward_flops"],
        "virtual_seconds": facts["virtual_seconds"],
        "devices": {
            name: {k: device[k] for k in ("clients", "eligible_always", "eligible_ever", "took_part")}
            for name, device in facts["devices"].items()
        },
        "metrics": {
            kind: {name: values[name] for name in shown_metrics(values)} for kind, values in facts["metrics"].items()
        },
        "chance": facts["chance"],
    }
