"""PmcmFL's traffic from its shapes: the whole model and three tables, both ways, for five clients a round."""

from __future__ import annotations

import pytest

import edgefl
from edgefl.scenario import load
from edgefl.setup.compose import compose
from tools.paper_tables.pmcmfl import beside
from tools.paper_tables.profiles import payloads

MIB, WIDTH = 2**20, 768
# everything but the last layer of the head: patches, class and mask token, positions, words; two experts in each of 12
# layers; fusion; the head's first layer and norm
EXPERT = 4 * (WIDTH**2 + WIDTH) + 8 * WIDTH**2 + 5 * WIDTH + 2 * (2 * WIDTH + WIDTH + 4 * WIDTH)
EMBEDDING = (64_010 + 16 * 16 * 3 + 1 + 1 + 1 + 903 + 1024) * WIDTH
FUSION = 4 * WIDTH + 2 * WIDTH**2 + WIDTH
HEAD = 2 * WIDTH**2 + 2 * WIDTH + 2 * 2 * WIDTH
BODY = EMBEDDING + 24 * EXPERT + FUSION + HEAD
MODEL = {k: BODY + 2 * WIDTH * k + k for k in (310, 3129)}
PRINTED = {310: (224_369_206, 855.9006, 2.7246, 0.3183), 3129: (228_702_009, 872.4289, 27.5010, 3.1522)}


@pytest.mark.parametrize("classes", [310, 3129])
def test_model_and_library_travel_both_ways(classes: int) -> None:
    method = compose(load(f"papers/pmcmfl-{classes}")).method
    table = 4 * classes * WIDTH
    for kind in method.setting.kinds:
        work = method.work(kind, 2)
        for side in (work.down, work.up):
            assert {p.name: p.tensor_bytes for p in side} == {"model": 4 * MODEL[classes], "prototypes": 3 * table}
    share = 100 * 3 * table / (4 * MODEL[classes])
    found = MODEL[classes], round(4 * MODEL[classes] / MIB, 4), round(3 * table / MIB, 4), round(share, 4)
    assert found == PRINTED[classes]


def test_without_prototypes_only_the_model_travels() -> None:
    """What its baselines of zero and random masks send."""
    method = compose(load("papers/pmcmfl-310", ["method.mask=random", "method.contrast=0"])).method
    assert {p.name for kind in method.setting.kinds for p in method.work(kind, 2).down} == {"model"}


@pytest.mark.parametrize(
    ("classes", "aligned", "distilled"),
    [(310, (0.9082, 0.106), (1.2748, 0.149)), (3129, (9.1670, 1.051), (46.5153, 5.332))],
)
def test_its_baselines_send_less_or_more(
    classes: int, aligned: tuple[float, float], distilled: tuple[float, float]
) -> None:
    """FedPAC one table, K x 768; FedHKD K x 768 and K x K."""
    features, predictions = 4 * classes * WIDTH, 4 * classes**2
    for method, size, printed in (("fedpac", features, aligned), ("fedhkd", features + predictions, distilled)):
        moved = payloads(f"pmcmfl-{classes}", "image-text", 2, f"method={{name: {method}}}")
        assert moved == {"model": 4 * MODEL[classes], "prototypes": size}
        assert (round(size / MIB, 4), round(100 * size / moved["model"], 3)) == printed


def test_published_shares_are_those_of_the_other_tasks_model() -> None:
    """3.21 % (PmcmFL) and 5.43 % (FedHKD): tables of 3,129 answers over the model for 310."""
    tables, knowledge = beside(3129, "PmcmFL"), beside(3129, "FedHKD")
    shares = {k: [round(100 * sent / (4 * MODEL[k]), 4) for sent in (tables, knowledge)] for k in MODEL}
    assert shares == {310: [3.2131, 5.4347], 3129: [3.1522, 5.3317]}


@pytest.mark.parametrize(
    ("inference", "last", "parameters"), [("classifier", 310, 2_248_246), ("prior", WIDTH, 2_952_192)]
)
def test_matching_models_are_about_one_percent_of_the_model(inference: str, last: int, parameters: int) -> None:
    hidden = WIDTH * (WIDTH + 1) + 2 * WIDTH * (WIDTH + 1)
    assert hidden + last * (2 * WIDTH + 1) == parameters
    method = f"method={{name: pmcmfl, inference: {inference}, matching: {{round: 30}}}}"
    assert payloads("pmcmfl-310", "image", 30, method) == {"matching": 4 * parameters}
    assert payloads("pmcmfl-310", "image-text", 30, method) == {"matching": 2 * 4 * parameters}


@pytest.mark.slow(smaller="test_model_and_library_travel_both_ways")
def test_the_profile_adds_up_a_round_of_five() -> None:
    found = edgefl.profile("papers/pmcmfl-310")
    one_way = 4 * MODEL[310] + 4 * 3 * 310 * WIDTH
    for row in found["rows"]:
        for way in ("download", "upload"):
            assert row[f"{way}_bytes"] == one_way
            assert row[f"{way}_bytes_by_payload"] == {"model": 4 * MODEL[310], "prototypes": 4 * 3 * 310 * WIDTH}
    for total in found["round_totals"]:
        assert total["download_bytes"] + total["upload_bytes"] == 5 * 2 * one_way
    assert round(5 * 2 * one_way / MIB, 4) == 8586.2521
    assert {t["traffic_bytes"] for t in found["totals"]} == {30 * 2 * one_way}


@pytest.mark.slow(smaller="test_model_and_library_travel_both_ways")
def test_layer_by_layer_a_stage_sends_its_two_layers() -> None:
    """Six stages of two layers, active parts only; the library travels in each."""
    overrides = ["schedule={name: layerwise, stages: 6, rounds: 30}", "data.clients={image-text: 30}"]
    found = edgefl.profile("papers/pmcmfl-310", overrides)
    joint = MODEL[310] - EMBEDDING - 24 * EXPERT
    down = [r["download_bytes_by_payload"]["model"] for r in found["rows"]]
    assert down == [4 * (EMBEDDING + 4 * EXPERT + joint), *[4 * (4 * EXPERT + joint)] * 5]
    assert (round(down[0] / MIB, 4), round(down[1] / MIB, 4)) == (314.5529, 119.1193)
