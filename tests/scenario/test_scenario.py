"""Whole scenarios: what load makes of a file, the way back, overrides and what is compared."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgefl.errors import ScenarioError
from edgefl.scenario import ScenarioErrors, load

TEXT = """\
edgefl: 1
name: cola-on-the-edge
seed: 7
data:
  source: glyphs
  clients: {image: 12, text: 12, image-text: 6}
  partition: {dirichlet: 0.5}
model:
  image: {tower: vit, blocks: 4, width: 96, heads: 3, patch: 8}
  text:  {tower: transformer, blocks: 4, width: 96, heads: 3, tokens: 24}
method: {name: fedcola, collaborate: attention, complementary: blocks, compensation: true}
schedule: {name: layerwise, stages: 2, rounds: 16, allocation: late}
training: {optimizer: adamw, lr: 1e-3, batch: 32, epochs: 2}
fleet:
  devices: {raspberry-pi-zero-2w: 40%, raspberry-pi-4-4gb: 40%, jetson-orin-nano-8gb: 20%}
  links: {wifi-5: 50%, lte: 50%}
  budgets: {memory: 12..48 MiB, flops_per_round: 2 TFLOP, bytes_per_round: 20 MB, energy_per_round: 2 kJ}
round: {policy: synchronous, cohort: 25%, deadline: 10 min, quorum: 2}
executor: {name: processes, workers: 2}
compare:
  schedule: [end-to-end, progressive, layerwise]
"""
BASE: dict[str, Any] = {"model": {"image": {}, "text": {}}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    return path


def refused(path: Path, *changes: tuple[str, str], overrides: tuple[str, ...] = ()) -> str:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(path, overrides)
    return str(caught.value).replace(f"{path}:", "line ")


def test_the_file_of_the_design(file: Path) -> None:
    scenario = load(file)
    assert (scenario.name, scenario.seed) == ("cola-on-the-edge", 7)
    assert scenario.data.clients == {"image": 12, "text": 12, "image-text": 6}
    assert scenario.model.image.width == 96
    assert scenario.method_name == "fedcola"
    assert scenario.method_options.complementary == "blocks"
    assert scenario.schedule_name == "layerwise"
    assert scenario.schedule_options.allocation == "late"
    assert scenario.training.lr == 0.001
    assert scenario.fleet.budgets.memory == (12 * 2**20, 48 * 2**20)
    assert scenario.fleet.budgets.flops_per_round == (2e12, 2e12)
    assert scenario.round.cohort == 0.25
    assert scenario.round.deadline == 600
    assert scenario.executor.workers == 2
    assert scenario.evaluation.every == 1
    with pytest.raises(FrozenInstanceError):
        scenario.seed = 3  # type: ignore[misc]


def test_what_is_left_out_has_defaults() -> None:
    scenario = load(BASE)
    assert (scenario.name, scenario.seed, scenario.method_name, scenario.schedule_name) == (
        "scenario", 1, "fedavg", "end-to-end",
    )  # fmt: skip
    assert load({**BASE, "fleet": None, "compare": None}) == scenario


def test_a_file_without_a_name_is_called_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "small one.yaml"
    path.write_text("edgefl: 1\nmodel: {text: {}}\ndata: {clients: {text: 3}}\n")
    assert load(str(path)).name == "small one"


def test_short_forms() -> None:
    short = load({**BASE, "method": "fedcola", "schedule": "layerwise", "executor": "processes", "data": "glyphs"})
    long = load(
        {**BASE, "method": {"name": "fedcola"}, "schedule": {"name": "layerwise"}, "executor": {"name": "processes"},
         "data": {"source": "glyphs"}}
    )  # fmt: skip
    assert short == long


def test_a_resolved_scenario_reloads_equal(file: Path, tmp_path: Path) -> None:
    scenario = load(file)
    again = tmp_path / "again.yaml"
    again.write_text(scenario.to_yaml())
    for reloaded in (load(again), load(scenario.to_data())):
        assert reloaded == scenario
        assert reloaded.to_data() == scenario.to_data()
        assert reloaded.combinations() == scenario.combinations()
    assert scenario.to_data()["training"]["precision"] == "float32"


shares = st.sampled_from([{"raspberry-pi-4-4gb": "100%"}, {"raspberry-pi-4-4gb": 0.3, "raspberry-pi-zero-2w": 0.7},
                          {"raspberry-pi-4-4gb": 1, "raspberry-pi-zero-2w": 29}])  # fmt: skip
sections = st.fixed_dictionaries(
    {"model": st.just({"image": {"blocks": 4}, "text": {"blocks": 4, "tokens": 8}})},
    optional={
        "name": st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=10),
        "seed": st.integers(0, 2**63 - 1),
        "data": st.fixed_dictionaries(
            {"clients": st.just({"image": 10, "text": 10, "image-text": 10})},
            optional={
                "partition": st.sampled_from(["iid", {"dirichlet": 0.1}, {"image": "iid", "text": {"quantity": 2}}]),
                "samples": st.none() | st.integers(1, 99) | st.just({"image": 5}),
            },
        ),
        "method": st.sampled_from(["fedavg", {"name": "fedprox", "mu": 0.5}, {"name": "fedcola", "partner": "frozen"}]),
        "schedule": st.sampled_from(["end-to-end", {"name": "layerwise", "stages": [1, 3], "allocation": [0, 9]},
                                     {"name": "progressive", "stages": 4, "rounds": 4}]),
        "training": st.fixed_dictionaries({}, optional={
            "lr": st.floats(1e-12, 10), "batch": st.integers(1, 10**6) | st.just({"image": 3}),
            "clip": st.none() | st.floats(1e-3, 10), "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
            "checkpointing": st.sampled_from([True, "on", "no"]),
        }),
        "fleet": st.fixed_dictionaries({}, optional={
            "devices": shares,
            "budgets": st.fixed_dictionaries({}, optional={
                "memory": st.sampled_from(["1..2 GiB", "40% of device", "10%..20% of device", 5, "1 MB", [1, 2]]),
                "energy_per_round": st.floats(1e-3, 1e6), "seconds_per_round": st.sampled_from(["1 min", "1..2 h"]),
            }),
        }),
        "round": st.fixed_dictionaries({}, optional={
            "cohort": st.sampled_from(["25%", "100%", 1.0, 0.5, 1, 30]), "stratify": st.booleans(),
            "deadline": st.none() | st.floats(1e-3, 1e9),
        }),
        "executor": st.sampled_from(["inline", "processes", {"name": "inline", "device": "cpu"}]),
        "evaluation": st.fixed_dictionaries({}, optional={"every": st.integers(1, 99)}),
        "compare": st.sampled_from([
            None, {"seed": [1, 2]}, {"method": ["fedavg", "fedcola"], "training.lr": [0.1, "1e-2"]},
            {"schedule": ["end-to-end", {"name": "layerwise", "stages": 2}]}, {"round": [{"cohort": 2}, {"cohort": 3}]},
            {"fleet.budgets.memory": ["1 MiB", "40% of device", "unlimited"]},
        ]),
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sections)
def test_every_scenario_reloads_equal_from_what_it_resolves_to(data: dict[str, Any]) -> None:
    scenario = load(data)
    assert load(scenario.to_data()) == scenario
    assert load(scenario.to_data()).to_data() == scenario.to_data()
    labels = [label for label, _ in scenario.combinations()]
    assert len({label.lower() for label in labels}) == len(labels)
    for label, combination in scenario.combinations():
        assert not set(label) & set('/\\ :*?"<>|\n')
        assert combination.compare == {}
        assert load(combination.to_data()) == combination


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("edgefl: 1", "edgefl: 2", 1, "edgefl: this edgefl reads version 1 of the format, not 2; update edgefl"),
        ("edgefl: 1\n", "", 1, "edgefl: is missing: write `edgefl: 1`"),
        ("name: cola-on-the-edge", "name: 12", 2, "name: must be text, not 12; put it in quotes"),
        ("seed: 7", "seed: -1", 3, "seed: must be a whole number from 0 to 2^63 - 1, not -1"),
        ("seed: 7", "seed: true", 3, "seed: must be a whole number from 0 to 2^63 - 1, not true"),
        ("seed: 7", "sede: 7", 3, "sede: unknown key 'sede'; did you mean 'seed'?"),
        ("seed: 7", "source: x", 3, "source: unknown key 'source'; it is a field of data: indent it below, or set"),
        ("image-text: 6", "img-text: 6", 6, "data.clients.img-text: unknown key 'img-text'; did you mean 'image-t"),
        ("{image: 12, text: 12, image-text: 6}", "{image: 0}", 4, "data: no clients"),
        ("{image: 12, text: 12, image-text: 6}", "30", 6,
         "data.clients: must be a mapping (`key: value`), not 30: number of clients of each kind"),
        ("image: 12", "image: -1", 6, "data.clients.image: must be at least 0, not -1"),
        ("tower: vit", "tower: vitt", 9, "model.image.tower: unknown tower 'vitt'; did you mean 'vit'?"),
        ("width: 96", "widht: 96", 9, "model.image.widht: unknown key 'widht'; did you mean 'width'?"),
        ("heads: 3", "heads: 5", 9, "model.image: width 96 can't be split over 5 heads"),
        ("  text:  {", "  txt:  {", 10, "model.txt: unknown key 'txt'; did you mean 'text'?"),
        ("name: fedcola", "name: fedkola", 11, "method.name: unknown method 'fedkola'; did you mean 'fedcola'?"),
        ("name: fedcola", "name: [fedcola]", 11, 'method.name: must be the name of a method, not ["fedcola"]'),
        ("name: fedcola", "name: FedAdam", 11, "method.name: unknown method 'FedAdam'; it is a server optimizer: write "
         "aggregation.optimizer: adam, beside a method such as fedavg"),
        ("name: fedcola", "name: layerwise", 11, "method.name: unknown method 'layerwise'; layerwise is a schedule; "),
        ("lr: 1e-3", "learning_rate: 1e-3", 13, "training.learning_rate: unknown key 'learning_rate'; did you mean "
         "'lr'?"),
        ("compensation: true", "compensation: 2", 11, "method.compensation: must be true or false, not 2"),
        ("stages: 2", "stages: 9", 12, "schedule.stages: 9 stages are more than the 4 blocks of the image tower"),
        ("lr: 1e-3", "lr: 0", 13, "training.lr: must be greater than 0, not 0"),
        ("lr: 1e-3", "lr: fast", 13, "training.lr: must be a number, not 'fast'"),
        ("lr: 1e-3", "lrr: 1e-3", 13, "training.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("lr: 1e-3", "lr: .inf", 13, "training.lr: must be a finite number, not inf"),
        ("lr: 1e-3", "lr: .nan", 13, "training.lr: must be a finite number, not nan"),
        ("source: glyphs", "source: glyph", 5, "data.source: unknown data set 'glyph'; did you mean 'glyphs'?"),
        ("source: glyphs", "source: glyphs\n  folders: {cifar: /x}", 6, "data.folders.cifar: unknown data set 'cifar'"),
        ("source: glyphs", "source: glyphs\n  missing: {audio: 30%}", 6,
         "data.missing: modalities are missing only from image-audio clients, but all clients are of the "
         "kinds image, "),
        ("source: glyphs", "source: glyphs\n  missing: {text: 1}", 6, "data.missing: image-text clients retrieve, "),
        ("{dirichlet: 0.5}", "{dirichle: 0.5}", 7, "data.partition: unknown partition 'dirichle'; did you"),
        ("{dirichlet: 0.5}", "{dirichlet: -1}", 7, "data.partition: dirichlet needs a number above 0"),
        ("{dirichlet: 0.5}", "dirichlet", 7,
         "data.partition: dirichlet needs a number above 0, e.g. {dirichlet: 0.5}; found none"),
        ("batch: 32", "batch: {img: 32}", 13, "training.batch.img: unknown kind 'img'; did you mean 'image'?"),
        ("deadline: 10 min", "deadline: 0", 18, "round.deadline: must be more than 0, not 0"),
        ("batch: 32", "batch: -32", 13, "training.batch: must be greater than 0 or a mapping (`key: value`), not -32"),
        ("epochs: 2", "epochs: true", 13, "training.epochs: must be a number, not true"),
        ("raspberry-pi-4-4gb", "raspberry-pi-44gb", 15, "fleet.devices.raspberry-pi-44gb: "),
        ("wifi-5: 50%", "wifi-5: 60%", 16, "fleet.links: "),
        ("12..48 MiB", "12..48 MIB", 17, "fleet.budgets.memory: "),
        ("12..48 MiB", "0", 17, "fleet.budgets.memory: a budget must be positive"),
        ("policy: synchronous", "policy: sync", 18, "round.policy: unknown round policy 'sync'"),
        ("quorum: 2", "quorum: 9", 18, "round.quorum: a quorum of 9 is never reached: a cohort has 7 clients"),
        ("cohort: 25%", "cohort: 31", 18, "round.cohort: a cohort of 31 clients exceeds the 30 in data.clients"),
        ("cohort: 25%", "cohort: 0", 18, "round.cohort: "),
        ("cohort: 25%", "cohort: 0%", 18, "round.cohort: "),
        ("cohort: 25%", "cohort: {image: 0%, text: 1, image-text: 1}", 18, "round.cohort: has 0 image clients"),
        ("cohort: 25%", "cohort: {imag: 1, text: 1, image-text: 1}", 18,
         "round.cohort.imag: there are no 'imag' clients; did you mean 'image' or 'image-text'?"),
        ("cohort: 25%", "cohort: {image: 1, text: 1}", 18,
         "round.cohort: says nothing of image-text clients: give their size, or list them in round.leave_out"),
        ("cohort: 25%", "cohort: {image: 40, text: 1, image-text: 1}", 18,
         "round.cohort.image: 40 image clients a round exceed the 12 in data.clients"),
        ("cohort: 25%", "stratify: false, cohort: {image: 1, text: 1, image-text: 1}", 18,
         "round.cohort: sizes by kind need stratify: true"),
        ("executor: {name: processes, workers: 2}", "executor: [inline]", 19,
         "executor: must be a mapping of fields, or one word for its 'name', not [\"inline\"]"),
        ("schedule: [end-to-end, ", "schedule: [end-to-endd, ", 21, "schedule.name: unknown schedule 'end-to-endd'"),
        ("  schedule: [end", "  scheduel: [end", 21, "compare.scheduel: 'scheduel' can't be compared"),
        ("[end-to-end, progressive, layerwise]", "[]", 21, "compare.schedule: must be a list of the values to compare"),
        ("[end-to-end, progressive, layerwise]", "layerwise", 21, "compare.schedule: must be a list"),
        ("[end-to-end, progressive, layerwise]", "[layerwise, layerwise]", 21,
         "compare.schedule[1]: 'layerwise' is listed twice"),
        ("schedule: [end-to-end, progressive, layerwise]", "training.lrr: [1]", 21, "training.lrr: unknown key 'lrr'"),
        ("schedule: [end-to-end, progressive, layerwise]", "training.lr:\n    - 1\n    - 0", 23,
         "training.lr: must be greater than 0, not 0"),
        ("compare:\n", "compare: 3\nsame:\n", 20, "compare: must map paths to lists"),
    ],
)  # fmt: skip
def test_errors_stand_on_their_line(file: Path, old: str, new: str, line: int, says: str) -> None:
    said = refused(file, (old, new)).split("\n")
    assert any(one.startswith(f"line {line}: {says}") for one in said), said
    assert len(said) == 1 or "same" in new


def test_several_errors_are_all_listed(file: Path) -> None:
    said = refused(
        file, ("seed: 7", "seed: x"), ("lr: 1e-3", "lr: 0"), ("quorum: 2", "quorun: 2"), ("name: fedc", "name: c")
    )
    assert [line.split(":")[0] for line in said.split("\n")] == ["line 3", "line 11", "line 13", "line 18"]


def test_clients_need_their_towers(file: Path) -> None:
    said = refused(file, ("  text:  {tower: transformer, blocks: 4, width: 96, heads: 3, tokens: 24}\n", ""))
    assert said.split("\n") == [
        "line 6: data.clients.text: text clients need a tower for text: add model.text",
        "line 6: data.clients.image-text: image-text clients need a tower for text: add model.text",
    ]


def test_counts_of_a_fleet_are_the_clients(file: Path) -> None:
    assert "line 16: fleet.links: the counts add up to 29, but there are 30 clients" in refused(
        file, ("{wifi-5: 50%, lte: 50%}", "{wifi-5: 9, lte: 20}")
    )


# --- overrides -------------------------------------------------------------------------------------------------------


def test_overrides_apply_in_order(file: Path) -> None:
    scenario = load(
        file,
        ["training.lr=1e-2", "training.lr = 2e-2", "data.clients.image=3", "fleet.budgets.memory=40% of device",
         "model.text.tokens=8", "compare=null", "training.batch={image: 4}", "name='1'", "executor=inline"],
    )  # fmt: skip
    assert scenario.training.lr == 0.02
    assert scenario.data.clients["image"] == 3
    assert scenario.fleet.budgets.memory == "40% of device"
    assert scenario.model.text.tokens == 8
    assert scenario.compare == {}
    assert scenario.training.batch == {"image": 4}
    assert scenario.name == "1"
    assert (scenario.executor.name, scenario.executor.workers) == ("inline", 2)


def test_a_word_replaces_the_name_and_keeps_what_applies(file: Path) -> None:
    with pytest.warns(UserWarning, match="leaves out"):
        scenario = load(file, ["schedule=end-to-end", "method=fedavg", "compare=null"])
    assert scenario.schedule_options.model_dump() == {"name": "end-to-end", "rounds": 16}
    assert scenario.method_name == "fedavg"


def test_an_override_reaches_into_what_the_file_leaves_out_or_writes_short() -> None:
    scenario = load(
        {**BASE, "method": "fedcola"}, ["method.complementary=mlp", "evaluation.every=5", "compare.seed=[1, 2]"]
    )
    assert scenario.method_options.complementary == "mlp"
    assert scenario.evaluation.every == 5
    assert [one.seed for _, one in scenario.combinations()] == [1, 2]


def test_an_override_reaches_into_a_bare_word_within_a_section() -> None:
    overrides = ["training.lr_schedule=cosine", "training.lr_schedule.warm_up=2", "model.image=vit",
                 "model.image.width=32", "round.selection=power-of-choice", "round.selection.choices=3"]  # fmt: skip
    scenario = load({**BASE, "round": {}}, overrides)
    schedule = scenario.training.lr_schedule
    assert schedule is not None and (schedule.name, schedule.warm_up) == ("cosine", 2)
    assert scenario.model.image is not None and scenario.model.image.width == 32
    assert scenario.round.selection_name == "power-of-choice"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.lr", "an override is path=value"),
        ("training.lrr=3", "training.lrr: unknown key 'lrr'; did you mean 'lr'?"),
        ("trainin.lr=3", "trainin: unknown key 'trainin'; did you mean 'training'?"),
        (
            "rounds=3",
            "rounds: unknown key 'rounds'; it is a field of schedule: indent it below, or set schedule.rounds",
        ),
        ("training.lr.x=3", "training.lr.x: training.lr is 0.001, which has no keys"),
        ("training.lr=[1", "this isn't valid YAML: a '[' without a closing ']', or a missing comma"),
        (
            "training.lr=!!python/name:os.system 1",
            "the tag '!!python/name:os.system' isn't allowed: scenarios can't have tags",
        ),
        ("model.image.block=2", "model.image.block: unknown key 'block'; did you mean 'blocks'?"),
        ("model.image.depth.x=2", "model.image.depth: unknown key 'depth'"),
        ("..=3", "'..' isn't a path"),
        ("=3", "'' isn't a path"),
        ("method=fedkola", "method.name: unknown method 'fedkola'; did you mean 'fedcola'?"),
        ("compare.schedule[0]=progresive", "schedule.name: unknown schedule 'progresive'; did you mean 'progressive'?"),
        ("compare.schedule.7=x", "compare.schedule[7]: compare.schedule is a list of 3, numbered from 0"),
        ("fleet.devices.raspberry-pi-9=1", "line 15: fleet.devices: mixes shares"),
    ],
)
def test_a_wrong_override_is_named(file: Path, override: str, says: str) -> None:
    said = refused(file, overrides=(override,))
    assert said.startswith(f"--set {override}: {says}")


def test_wrong_overrides_are_all_listed(file: Path) -> None:
    with pytest.raises(ScenarioErrors) as caught:
        load(file, ["a", "b"])
    assert len(caught.value.errors) == 2


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare_is_a_product_and_a_word_keeps_what_applies(file: Path) -> None:
    grid = load(file).combinations()
    assert [label for label, _ in grid] == ["end-to-end", "progressive", "layerwise"]
    options = {label: one.schedule_options.model_dump(exclude={"name"}) for label, one in grid}
    assert options["end-to-end"] == {"rounds": 16}
    assert options["progressive"] == {"rounds": 16, "stages": 2, "allocation": "late", "until": None}
    assert options["layerwise"]["allocation"] == "late"
    assert {one.name for _, one in grid} == {"cola-on-the-edge"}


def test_a_mapping_replaces_a_whole_section() -> None:
    scenario = load({**BASE, "schedule": {"name": "end-to-end", "rounds": 8},
                     "compare": {"schedule": [{"name": "layerwise"}, "layerwise", "end-to-end"]}})  # fmt: skip
    assert [(label, one.schedule_options.rounds) for label, one in scenario.combinations()] == [
        ("layerwise-empty", None), ("layerwise-8", 8), ("end-to-end", 8),
    ]  # fmt: skip


def test_a_section_goes_in_before_its_fields_whatever_their_order() -> None:
    scenario = load({**BASE, "compare": {"method.complementary": ["mlp", "none"], "method": ["fedcola"]}})
    assert [(label, one.method_options.complementary) for label, one in scenario.combinations()] == [
        ("complementary=mlp,fedcola", "mlp"), ("complementary=none,fedcola", "none"),
    ]  # fmt: skip


def test_labels_of_mappings_are_readable() -> None:
    def labels(**compare: list[Any]) -> list[str]:
        paths = {path.replace("__", "."): values for path, values in compare.items()}
        return [label for label, _ in load({**BASE, "compare": paths}).combinations()]

    pi, jetson = "raspberry-pi-4-4gb", "jetson-orin-nano-8gb"
    devices: list[Any] = [pi, {jetson: "100%"}, {jetson: 1.0}, {pi: "40%", jetson: "60%"}]
    assert labels(fleet__devices=devices[:2]) == [f"devices={pi}", f"devices={jetson}"]
    assert labels(fleet__devices=[devices[3], devices[1]]) == [f"devices={pi}=40%+{jetson}=60%", f"devices={jetson}"]
    # equal words are told apart by a number
    assert labels(fleet__devices=devices[1:3]) == [f"devices={jetson}#1", f"devices={jetson}#2"]
    # whole sections: the fields in which they differ
    fleets = [{"devices": pi, "budgets": {"memory": "8MiB"}}, {"devices": pi, "budgets": {"memory": "16MiB"}}]
    first, second = labels(fleet=fleets)
    assert first.startswith("budgets=memory=") and first != second and "{" not in first + second
    assert labels(data__clients=[{"image": 3}, {"image": 4}]) == ["clients=image=3", "clients=image=4"]


def test_more_combinations_than_anybody_reads_are_refused() -> None:
    with pytest.raises(ScenarioError, match="compare: 10100 combinations are more than 10000"):
        load({**BASE, "compare": {"seed": list(range(101)), "training.batch": list(range(1, 101))}})


def test_without_compare_there_is_the_scenario_itself() -> None:
    scenario = load(BASE)
    assert scenario.combinations() == [("scenario", scenario)]


def test_a_combination_that_is_not_valid_is_found_when_the_file_is_loaded(file: Path) -> None:
    said = refused(file, ("  schedule: [", "  model.image.blocks: [1, 4]\n  schedule: ["))
    assert said.startswith("line 22: schedule: 2 stages are more than the 1 blocks of the image tower")


def test_scenarios_compare_by_what_they_mean(file: Path) -> None:
    scenario = load(file)
    assert scenario == load(scenario.to_data())  # written otherwise, in other places
    assert scenario != load(file, ["seed=8"])
    assert "_document" not in repr(scenario)


def test_a_missing_file_names_the_nearest(file: Path) -> None:
    for missing in (file.with_name("t.yaml"), file.with_suffix(".yml"), str(file.with_name("s.yam"))):
        with pytest.raises(ScenarioError, match="there is no such file or shipped scenario; did you mean 's.yaml'"):
            load(missing)
    for wrong in ("", " ", "a\0b"):
        with pytest.raises(ScenarioError, match="can't be the name of a file"):
            load(wrong)
    with pytest.raises(ScenarioError, match="File name too long"):
        load("x" * 5000)


# --- whatever is written ---------------------------------------------------------------------------------------------

WRONG = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["fedcola", "layerwise", "glyphs", "40%", "12..48 MiB", "on", "-1 s", "image", "vit", "=", ".."]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
PATHS = [
    (section, *rest)
    for section, value in load({**BASE, "compare": {"seed": [1, 2]}}).to_data().items()
    for rest in [(), *([(key,) for key in value] if isinstance(value, dict) else [])]
] + [("fleet", "budgets", "memory"), ("data", "clients", "image"), ("model", "image", "blocks"), ("training", "new")]


@pytest.mark.slow(smaller="test_several_errors_are_all_listed")
@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), WRONG), min_size=1, max_size=3))
def test_whatever_is_written_is_a_scenario_or_a_scenario_error(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    data: dict[str, Any] = load({**BASE, "compare": {"seed": [1, 2]}}).to_data()
    for path, value in changes:
        holder: Any = data
        for part in path[:-1]:
            holder = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder[path[-1]] = value
    said = ""
    try:
        scenario = load(data)
    except ScenarioError as error:
        said = str(error)
    else:
        assert load(scenario.to_data()) == scenario
    assert not any(jargon in said for jargon in ("pydantic", "Input", "validation error", "https://"))


def test_an_unknown_data_set_is_told_beside_a_missing_model() -> None:
    with pytest.raises(ScenarioErrors) as wrong:
        load({"data": {"source": "glyhps", "partition": "dirichlt"}})
    said = str(wrong.value)
    assert "a model needs at least one tower" in said and "did you mean 'glyphs'?" in said
    assert "unknown partition 'dirichlt'" in said


def test_each_unknown_device_of_a_list_has_a_line() -> None:
    with pytest.raises(ScenarioError) as wrong:
        load("quickstart", ["fleet.devices=[raspberry-pi-44, jetson-nan, lte]"])
    lines = str(wrong.value).splitlines()
    assert len(lines) == 3 and all("fleet.devices: unknown device " in line for line in lines)


def test_a_suite_is_no_scenario() -> None:
    with pytest.raises(ScenarioError, match="variants: belongs to a suite, which edgefl bench takes"):
        load({"scenario": "quickstart", "variants": {"a": {}}, "seeds": 3})


def test_relative_paths_are_looked_for_beside_the_scenario_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    for folder in (here, home):
        (folder / "profiles").mkdir(parents=True)
    monkeypatch.chdir(here)
    device = (Path(__file__).parents[2] / "profiles" / "devices" / "raspberry-pi-4-4gb.yaml").read_text()
    fleet = (Path(__file__).parents[2] / "profiles" / "fleets" / "classroom.yaml").read_text()
    for path in (home / "profiles" / "pi.yaml", here / "zero.yaml"):
        path.write_text(device)
    (home / "profiles" / "fleet.yaml").write_text(re.sub(r"devices: .*", "devices: {profiles/pi.yaml: 100%}", fleet))
    for path in (home / "trace.csv", home / "w.safetensors", here / "w.safetensors", home / "tokenizer.json"):
        path.write_text("device,start,end\na,0,9\n")
    text = """edgefl: 1
data: {source: digits, clients: {image: 2}, folders: {images: pictures}, vocabulary: tokenizer.json}
model: {image: {blocks: 1, width: 16, heads: 2, patch: 4, weights: w.safetensors}}
pretrain: {image: {from: w.safetensors}}
fleet: {devices: {profiles/pi.yaml: 1, ./zero.yaml: 1}, availability: {trace: {file: trace.csv}}}
"""
    (home / "s.yaml").write_text(text)
    (home / "pictures").mkdir()
    found = load("../home/s.yaml")
    assert found.data.folders == {"images": Path("../home/pictures")}
    assert found.data.vocabulary == "../home/tokenizer.json"
    assert found.model.image.weights == "../home/w.safetensors" == str(found.pretrain.image.source)
    assert {*found.fleet.devices} == {"../home/profiles/pi.yaml", "./zero.yaml"}
    assert found.fleet.availability.trace.file == "../home/trace.csv"
    assert load(found.to_data()) == found  # a run's folder has the paths from here
    (home / "s.yaml").write_text("edgefl: 1\nmodel: {image: {}, text: {}}\nfleet: profiles/fleet.yaml\n")
    assert list(load("../home/s.yaml").fleet.devices) == ["../home/profiles/pi.yaml"]
    monkeypatch.chdir(home)
    (home / "s.yaml").write_text(text.replace("./zero.yaml: 1", "raspberry-pi-4-4gb: 1"))
    assert load("s.yaml").data.folders == {"images": Path("pictures")}  # as it is written
    monkeypatch.chdir(here)
    names = "pictures|tokenizer.json|w.safetensors|profiles/pi.yaml|trace.csv"
    (home / "s.yaml").write_text(re.sub(names, "gone.yaml", text))
    with pytest.raises(ScenarioErrors) as caught:
        load("../home/s.yaml")
    assert {error.key for error in caught.value.errors} == {
        "data.folders.images", "data.vocabulary", "model.image.weights", "pretrain.image.from",
        "fleet.devices.gone.yaml", "fleet.availability.trace.file"}  # fmt: skip
    tried = f"tried {home / 'gone.yaml'}, {here / 'gone.yaml'}"
    assert all(error.message.endswith(tried) for error in caught.value.errors)


def test_cells_share_the_sections_that_they_have_in_common() -> None:
    """A section is read and checked once for all of them, and what an override sets is read anew."""
    first, second = (cell for _, cell in load("quickstart", ["compare={training.batch: [8, 16]}"]).combinations())
    assert first.data is second.data and first.model is second.model
    assert (first.training.batch, second.training.batch) == (8, 16)
