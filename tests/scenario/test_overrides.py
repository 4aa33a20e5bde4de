"""What an override causes and leaves out: an error names it, and so does a warning."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest

from edgefl.errors import MOST_TOLD, ScenarioError
from edgefl.scenario import ScenarioErrors, load
from edgefl.scenario.axes import ScenarioAxis
from edgefl.scenario.scenario import cells_of
from edgefl.scenario.suite import read_suite

TEXT = """\
edgefl: 1
name: thesis
data: {source: glyphs, clients: {image: 6, image-text: 4}, samples: 40, partition: {dirichlet: 0.5}}
model:
  image: {tower: vit, blocks: 4, width: 32, heads: 4, patch: 8}
  text: {tower: transformer, blocks: 4, width: 32, heads: 4, tokens: 16}
adapter: {name: lora, rank: 4}
method: {name: fedprox, mu: 0.1}
schedule: {name: layerwise, stages: [1, 1, 2], allocation: [6, 3, 3]}
training:
  optimizer: {name: adamw}
  weight_decay: 0.01
  lr_schedule: {name: step, every: 2}
  rates: {head: [1e-3, 2e-3, 3e-3], image: {lr: [1e-3, 2e-3, 3e-3], weight_decay: 0.1}, text: 1e-3}
payload: {up: {dtype: int8, top_k: 10%}}
aggregation: {rule: trimmed-mean, trim: 0.2, optimizer: adam, tau: 0.01}
fleet:
  failures: {attack: {name: scaling, share: 20%, factor: 4}}
  availability: {diurnal: {hours: 8 h}}
round: {policy: buffered, buffer: 5, weighting: samples, cohort: 5, selection: {name: oort, penalty: 2}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    return path


def refused(file: Path, *overrides: str, text: str = TEXT) -> list[str]:
    """The lines of the error, the file as its name."""
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(file, overrides)
    return str(caught.value).replace(f"{file}", "s.yaml").split("\n")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        # the place of the file that it contradicts is named too
        (["schedule.stages=9"], "--set schedule.stages=9: s.yaml:9: schedule: allocation lists 3 stages, but there"),
        (["seed=4", "data.clients.image-text=2", "data.clients.image=0"],
         "--set data.clients.image=0: s.yaml:20: round.cohort: a cohort of 5 clients exceeds the 2"),
        (["method.mu=-3"], "--set method.mu=-3: method.mu: must be"),
    ],
)  # fmt: skip
def test_an_error_is_told_at_the_override_that_causes_it(file: Path, overrides: list[str], said: str) -> None:
    [line] = refused(file, *overrides)
    assert line.startswith(said)


def test_what_is_wrong_without_an_override_is_told_at_its_line(file: Path) -> None:
    wrong = TEXT.replace("trim: 0.2", "trim: 0.7")
    first, second = refused(file, "training.batch=8", "method.mu=-3", text=wrong)
    assert first.startswith("s.yaml:16: aggregation.trim: ") and second.startswith("--set method.mu=-3: method.mu: ")


@pytest.mark.parametrize(
    ("name", "word", "field"),
    [
        ("schedule.name=end-to-end", "schedule=end-to-end", "schedule.stages"),
        ("method.name=fedavg", "method=fedavg", "method.mu"),
        ("model.image.tower=resnet", "model.image=resnet", "model.image.blocks"),
        ("fleet.failures.attack.name=label-flip", "fleet.failures.attack=label-flip", "fleet.failures.attack"),
        ("training.lr_schedule.name=constant", "training.lr_schedule=constant", "training.lr_schedule"),
    ],
)
def test_the_name_of_a_part_and_the_part_name_each_other(file: Path, name: str, word: str, field: str) -> None:
    for line in refused(file, name):
        assert line.startswith(f"--set {name}: s.yaml:") and line.endswith(f"; --set {word} leaves it out")
    assert any(f": {field}: " in line for line in refused(file, name))
    other = word.rpartition("=")[0] + "=another"
    for both in ([other, name], [name, other]):
        assert f"--set {name}: {name.rpartition('=')[0]}: --set {other} names 'another': give one of both" in refused(
            file, *both
        )


def test_the_name_of_a_part_that_is_compared_names_the_word(file: Path) -> None:
    compared = TEXT + "compare: {schedule: [layerwise, progressive]}\n"
    [line] = refused(file, "schedule.name=layerwise", text=compared)
    assert line.endswith("schedule is compared: to run one alone write --set schedule=layerwise")
    assert not load(file, ["schedule=layerwise"]).compare


@pytest.mark.parametrize(
    ("override", "lost"),
    [
        ("method=fedavg", ["method.mu"]),
        ("schedule=end-to-end",
         ["schedule.stages", "schedule.allocation", "training.rates.image.lr", "training.rates.head"]),
        ("schedule={name: layerwise, stages: 2, rounds: 4}", ["training.rates.image.lr", "training.rates.head"]),
        ("schedule=progressive", []),
        ("model.image=resnet", [f"model.image.{field}" for field in ("blocks", "width", "heads", "patch")]),
        ("training.optimizer=mezo", ["training.weight_decay", "training.rates"]),
        ("training.lr_schedule=constant", ["training.lr_schedule.every"]),
        ("aggregation=mean", ["aggregation.trim"]),
        ("aggregation.rule=median", ["aggregation.trim"]),
        ("aggregation.optimizer=average", ["aggregation.tau"]),
        ("fleet.failures.attack=label-flip", ["fleet.failures.attack.factor"]),
        ("fleet.availability=always", ["fleet.availability.diurnal"]),
        ("round=synchronous", []),
        ("round.policy=semi-synchronous", ["round.weighting"]),
        ("round.selection=power-of-choice", ["round.selection.penalty"]),
        ("payload.up=float16", []),
        ("data=icons", []),
    ],
)  # fmt: skip
def test_a_word_leaves_out_what_its_part_does_not_take_and_says_so(file: Path, override: str, lost: list[str]) -> None:
    overrides = [override, *(["adapter=none"] if "resnet" in override or "mezo" in override else [])]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        changed = load(file, overrides).to_data()
    told = [str(each.message) for each in caught if str(each.message).startswith(f"--set {override} ")]
    if not lost:
        assert not told
        return
    [line] = told
    fields = line.removeprefix(f"--set {override} leaves out ").partition(", which ")[0].split(", ")
    assert sorted(fields) == sorted(lost)
    assert changed["training"]["rates"].get("text", 1e-3) == 1e-3


def test_what_the_part_takes_stays(file: Path) -> None:
    assert load(file, ["payload.up=float16"]).to_data()["payload"]["up"] == {"dtype": "float16", "top_k": 0.1}
    with pytest.warns(UserWarning, match="leaves out fleet.failures.attack.factor, which label-flip doesn't take"):
        attack = load(file, ["fleet.failures.attack=label-flip"]).fleet.failures.attack
    assert attack is not None and attack.share == 0.2


def test_what_an_override_gives_is_never_left_out(file: Path) -> None:
    with pytest.warns(UserWarning, match="--set schedule=end-to-end leaves out schedule.allocation"):
        [line] = refused(file, "schedule=end-to-end", "schedule.stages=2")
    assert line.startswith("--set schedule.stages=2: schedule.stages: unknown key 'stages'")
    with pytest.warns(UserWarning, match="leaves out method.mu"):
        [line] = refused(file, "method=fedavg", "training.weight_decay=-1")
    assert line.startswith("--set training.weight_decay=-1: training.weight_decay: must be")


def test_a_wrong_field_of_the_file_is_no_field_that_a_word_refuses(file: Path) -> None:
    lines = refused(file, "training.optimizer=sgd", text=TEXT.replace("weight_decay: 0.01", "weight_decay: -1"))
    assert lines == ["s.yaml:12: training.weight_decay: must be at least 0, not -1"]


def test_what_is_compared_is_blamed_at_its_line(file: Path) -> None:
    compared = TEXT + "compare:\n  method: [fedavg, fedprox]\n  schedule.stages:\n  - [1, 1, 2]\n  - 5\n"
    [line] = refused(file, text=compared)
    assert line == "s.yaml:25: schedule: allocation lists 3 stages, but there are 5"


def test_words_on_an_axis_tell_of_fields_outside_the_part_alone(file: Path) -> None:
    axis = ScenarioAxis.from_text("schedule=end-to-end,progressive")
    with pytest.warns(UserWarning, match="--vary") as caught:
        cells, _ = cells_of(load(file), [axis])
    [told] = {str(each.message) for each in caught}
    assert told == (
        "--vary schedule=end-to-end,progressive leaves out training.rates.image.lr, training.rates.head, "
        "which end-to-end doesn't take, so what has no other rate trains at training.lr"
    )
    assert set(cells[0][1].training.rates) == {"image", "text"} and len(cells[1][1].training.rates) == 3


def test_of_many_errors_the_first_are_told_and_counted(file: Path) -> None:
    unknown = "".join(f"  unknown_{i}: {i}\n" for i in range(2000))
    for text in (TEXT + unknown.replace("  ", ""), TEXT.replace("fleet:\n", f"fleet:\n{unknown}")):
        file.write_text(text)
        began = time.process_time()
        with pytest.raises(ScenarioErrors) as caught:
            load(file)
        assert time.process_time() - began < 2  # 8 s where each error reads the schema, or is compared with all others
        lines = str(caught.value).split("\n")
        assert len(caught.value.errors) == 2000 and len(lines) == MOST_TOLD + 1 and lines[-1] == "and 1,980 more"


def test_faults_of_a_suite_are_told_together(file: Path) -> None:
    file.write_text(
        "edgefl: 1\nnmae: bad\nscenario: {data: {source: glyphs, clients: {image: 6}}, model: {image: {blocks: 2}}}\n"
        "seeds: 0\nvariants:\n  a: {schedul: layerwise}\n  b: {method.nu: 3}\n"
        "conditions: {x: {fleet.budgets.flop: 2}}\n"
    )
    with pytest.raises(ScenarioErrors) as caught:
        read_suite(file)
    assert [(error.line, error.key) for error in caught.value.errors] == [
        (2, "nmae"), (4, "seeds"), (6, "variants.a.schedul"), (7, "method.nu"), (8, "fleet.budgets.flop"),
    ]  # fmt: skip
