"""The aggregation section in real runs: what it refuses, poisoned clients, optimizers that outlive an interruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from edgefl_games import TABLES, Games, broken_rules, changed
from edgefl_toys import CopyingMemory, declared
from tensors import assert_equal_tensors

from edgefl.console.display import Lines
from edgefl.errors import EdgeflError
from edgefl.planning.setup import Setup
from edgefl.scenario import load
from edgefl.training import Assignment, Inline
from edgefl.work.update import Update


@pytest.fixture(scope="module")
def games(tiny: Callable[..., dict[str, Any]]) -> Games:
    return Games(tiny)


class Poisoned(Inline):
    """Trains, and spoils one number of what clients of ``bad`` send: in their model, or in their tables."""

    bad: Mapping[int, str] = {}

    def submit(self, task: Assignment) -> Future[Update]:
        future = super().submit(task)
        wanted = self.bad.get(task.client) if task.client is not None else None
        if wanted is not None:
            for named in list(found := future.result().payloads):
                if named == wanted:
                    name = next(iter(found[named]))
                    value = found[named][name].clone()
                    value.view(-1)[0] = float("nan")
                    found[named] = {**found[named], name: value}  # type: ignore[index]
        return future


def poisoned(games: Games, bad: Mapping[int, str]) -> Callable[..., Any]:
    def play(setup: Setup, **options: Any) -> Any:
        with Poisoned(setup.clients, "cpu") as executor:  # type: ignore[arg-type]
            executor.bad = bad
            return games.real(setup, executor, **options)

    return play


def setup(
    games: Games, aggregation: Any = None, policy: str = "synchronous", rounds: int = 3, **sections: Any
) -> Setup:
    clients = {"image": 3, "text": 2}
    data = {**games.tiny()["data"], "clients": clients, "samples": 16}
    asked = {"data": data, "schedule": {"name": "end-to-end", "rounds": rounds}, "aggregation": aggregation, **sections}
    made = games.setup(**asked)
    return changed(made, {"policy": policy, "cohort": 5, "buffer": 3, "window": 0.1, "retry": 0.05}, jitter=0.3)


def assert_resumes(play: Callable[..., Any], setup: Setup) -> Any:
    """From every checkpoint on, records and tensors are those of the run that wasn't cut off; gives that run."""
    whole, told = play(setup, journal=CopyingMemory())
    for round, since in told.states.items():
        again, journal = play(setup, since=(round, *since), journal=CopyingMemory())
        for table in TABLES:
            assert journal.tables.get(table, []) == [r for r in told.tables.get(table, []) if r["round"] > round]
        assert again.state.versions == whole.state.versions
        assert_equal_tensors(again.state.tensors, whole.state.tensors)
    return whole, told


# poisoned clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        "synchronous",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("asynchronous", "buffered", "semi-synchronous")),
    ],
)
def test_a_poisoned_client_is_left_out_and_named(games: Games, policy: str) -> None:
    made = setup(games, policy=policy, rounds=2 if policy == "synchronous" else 4)
    whole, told = assert_resumes(poisoned(games, {1: "model"}), made)
    assert broken_rules(made, told) == []
    assert all(bool(t.isfinite().all()) for t in whole.state.tensors.values())
    named = [client for r in told.tables["rounds"] for client in r["rejected"]]
    came = [c for c in told.tables["clients"] if c["client"] == 1 and c["outcome"] == "rejected"]
    assert named == [1] * len(came) and came


@pytest.mark.slow(smaller="test_a_poisoned_client_is_left_out_and_named")
def test_whoever_keeps_them_gets_them(games: Games) -> None:
    made = setup(games, {"non_finite": "keep"}, rounds=1)
    with pytest.warns(RuntimeWarning, match="the model diverged in round 1"):
        whole, told = poisoned(games, {1: "model"})(made, on_divergence="continue")
    assert any(not bool(t.isfinite().all()) for t in whole.state.tensors.values())
    assert told.tables["rounds"][0]["rejected"] == []


def test_rejected_updates_do_not_count_for_the_quorum(games: Games) -> None:
    made = setup(games, rounds=1)
    made = replace(made, round=made.round.model_copy(update={"quorum": 4}))
    for bad, outcome in (({1: "model"}, "completed"), ({1: "model", 3: "model"}, "below quorum")):
        whole, told = poisoned(games, bad)(made)
        (record,) = told.tables["rounds"]
        assert (record["outcome"], record["rejected"], record["finished"]) == (outcome, sorted(bad), 5 - len(bad))
        assert any(whole.state.versions.values()) == (outcome == "completed")


@pytest.mark.slow(smaller="test_a_poisoned_client_is_left_out_and_named")
@pytest.mark.parametrize(("method", "table"), [("creamfl", "representations"), ("pmcmfl", "prototypes")])
def test_a_poisoned_table_is_rejected_too(games: Games, method: str, table: str) -> None:
    from edgefl import registry

    needs = registry.get("method", method).needs
    base = games.tiny()["data"]
    made = games.setup(
        **{**needs, "method": method, "data": {**base, "samples": 16, "public": 24, **needs.get("data", {})}}
    )
    whole, told = poisoned(games, {0: table})(made)
    assert all(r["rejected"] == [0] for r in told.tables["rounds"])
    assert all(bool(t.isfinite().all()) for t in whole.state.tensors.values())


def test_progress_warns_of_them() -> None:
    said = StringIO()
    record = {
        "round": 1, "stage": 1, "eligible": {"image": 2}, "clients": {"image": 2}, "finished": 2, "selected": 2,
        "samples": {"image": 8}, "eligible_samples": {"image": 8}, "under_way": 0, "outcomes": {},
        "excluded": {"samples": 0, "lost_classes": [], "lost_modalities": [], "modality_samples_share": {}},
        "outcome": "completed", "started_virtual_seconds": 0.0, "virtual_seconds": 1.0,
        "finished_virtual_seconds": 1.0, "metrics": {}, "rejected": [], "rejections": {}, "server_works": [],
    }  # fmt: skip
    with Lines(said) as lines:
        lines("combination", {"label": "run", "index": 0, "of": 1})
        lines("start", {"round": 0, "rounds": 3})
        for clients in ([], [7], list(range(12))):
            lines("record", {**record, "rejected": clients, "round": record["round"]})
    warned = [line for line in said.getvalue().splitlines() if line.startswith("warning")]
    assert warned == [
        "warning: run: round 1 left out client 7's update: NaN or infinity in it",
        "warning: run: round 1 left out updates of clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more: "
        "NaN or infinity in them",
    ]


# optimizers and rules in a run ----------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "adam": {"optimizer": "adam"},
    "yogi": {"optimizer": "yogi", "clip": 1.0},
    "momentum": {"optimizer": "momentum", "rule": "median"},
    "adagrad": {"optimizer": "adagrad", "beta1": 0.5, "compensation": True},
}
POLICIES = ("synchronous", "buffered", "asynchronous", "semi-synchronous")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if (name, policy) == ("adam", "buffered") else pytest.mark.slow)
        for name in OPTIONS
        for policy in POLICIES
        if policy != "asynchronous" or name in ("adam", "yogi")
    ],
)
def test_an_optimizer_outlives_an_interruption_and_does_without_training(games: Games, name: str, policy: str) -> None:
    made = setup(games, OPTIONS[name], policy)
    whole, _ = assert_resumes(games.real, made)
    none, _ = games.none(made)
    assert none.state.versions == whole.state.versions
    shapes = {a: (t.shape, t.dtype) for a, t in whole.state.tensors.items()}
    assert {a: (t.shape, t.dtype) for a, t in none.state.tensors.items()} == shapes
    assert any(a.startswith("table/server-optimizer.mean/") for a in shapes)


@pytest.mark.slow(smaller="test_a_method_without_models_at_the_server_has_nothing_to_aggregate")
@pytest.mark.parametrize("method", ["fedcola", "fedcola-mat", "pmcmfl", "creamfl"])
@pytest.mark.parametrize("name", ["yogi", "adagrad"])
def test_every_method_that_averages_takes_them(games: Games, method: str, name: str) -> None:
    from edgefl import registry

    needs = registry.get("method", method).needs
    options = {"name": method, **({"clients": "averaged"} if method == "creamfl" else {})}
    data = {**games.tiny()["data"], "samples": 16, "public": 24, **needs.get("data", {})}
    made = games.setup(**{**needs, "method": options, "data": data, "aggregation": OPTIONS[name]})
    whole, _ = assert_resumes(games.real, made)
    none, _ = games.none(made)
    assert none.state.versions == whole.state.versions
    assert all(bool(t.isfinite().all()) for t in whole.state.tensors.values())


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "key", "said"),
    [
        ("aggregation: {rule: mode}", "aggregation.rule", "median"),
        ("aggregation: {rule: trimmed-mean, trim: 0.5}", "aggregation.trim", "less than 0.5"),
        ("aggregation: {trim: 0.2}", "aggregation", "trim belongs to rule trimmed-mean, not mean"),
        ("aggregation: {attackers: 2}", "aggregation", "attackers belongs to rule krum or multi-krum, not mean"),
        ("aggregation: {rule: krum, attackers: -1}", "aggregation.attackers", "at least 0, not -1"),
        ("aggregation: {rule: krun}", "aggregation.rule", "krum"),
        ("aggregation: {clip: 0}", "aggregation.clip", "greater than 0"),
        ("aggregation: {optimizer: adam, momentum: 0.5}", "aggregation", "belongs to optimizer momentum, not adam"),
        ("aggregation: {optimizer: adagrad, beta2: 0.5}", "aggregation", "beta2 belongs to optimizer adam or yogi"),
        ("aggregation: {optimiser: adam}", "aggregation.optimiser", "optimizer"),
        ("aggregation: median\nround: asynchronous", "aggregation.rule", "median needs several updates"),
        ("aggregation: krum\nround: asynchronous", "aggregation.rule", "krum needs several updates"),
        ("aggregation: {compensation: true}\nround: asynchronous", "aggregation.compensation", "needs all updates"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path: Any, told: str, key: str, said: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "edgefl: 1\nmodel: {image: {blocks: 2}}\ndata: {source: glyphs, clients: {image: 4}}\n" + told + "\n"
    )
    with pytest.raises(EdgeflError) as caught:
        load(file)
    text = str(caught.value)
    assert said in text and "wrong.yaml:4" in text and key in text, text


def test_a_method_without_models_at_the_server_has_nothing_to_aggregate(games: Games) -> None:
    data = declared({"data": {**games.tiny()["data"], "public": 24}})["data"]
    with pytest.raises(EdgeflError, match="aggregation: creamfl has no models to average"):
        games.setup(method="creamfl", data=data, aggregation={"optimizer": "adam"})
    for fine in ({"non_finite": "keep"}, {}):
        games.setup(method="creamfl", data=data, aggregation=fine)
    games.setup(method={"name": "creamfl", "clients": "averaged"}, data=data, aggregation={"optimizer": "adam"})
