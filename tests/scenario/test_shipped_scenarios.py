"""The scenarios that come with edgefl: found by name, valid, and the papers' set-ups in numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from edgefl import registry
from edgefl.errors import ScenarioError
from edgefl.scenario import json_schema, library_folder, load, scenario_names
from edgefl.scenario.document import read_file
from edgefl.scenario.sections import SECTIONS


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    Draft202012Validator.check_schema(json_schema())
    return Draft202012Validator(json_schema())


@pytest.mark.parametrize("name", scenario_names())
def test_every_shipped_scenario_loads_by_its_name_and_fits_the_schema(name: str, schema: Draft202012Validator) -> None:
    scenario = load(name)
    assert load(scenario.to_data()) == scenario
    schema.validate(read_file(library_folder() / f"{name}.yaml", name).data)
    schema.validate(scenario.to_data())
    assert scenario.name == name.split("/")[-1]


@pytest.mark.parametrize("name", ["quickstart", "papers/fedcola-colayer-mlp"])
def test_a_name_a_file_of_that_name_and_its_path_are_the_same_scenario(name: str) -> None:
    assert load(f"{name}.yaml") == load(library_folder() / f"{name}.yaml") == load(name)


def test_the_tour_shows_every_section() -> None:
    assert set(SECTIONS) <= set(read_file(library_folder() / "tour.yaml", "tour").data)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'papers/fedcola-colayer-mlp'"):
        load("papers/fedcola-colayer-mpl")


@pytest.mark.parametrize("colayer", ["none", "attention", "mlp", "blocks"])
def test_fedcola_is_the_papers_set_up(colayer: str) -> None:
    scenario = load(f"papers/fedcola-colayer-{colayer}")
    assert scenario.method_name == "fedcola"
    assert scenario.method_options.complementary == colayer
    assert scenario.method_options.collaborate == "attention"
    assert scenario.method_options.compensation
    clients, cohort = scenario.data.clients, scenario.round.cohort
    # (3, 3, 2) clients a round of (12, 12, 8): FedCola
    assert [math.floor(cohort * clients[kind]) for kind in ("image", "text", "image-text")] == [3, 3, 2]
    for tower in scenario.model.towers.values():
        assert (tower.blocks, tower.width, tower.heads) == (12, 384, 6)
    image, shapes = scenario.model.image, scenario.data.shapes
    assert shapes is not None
    # parameters of the image embedding (convolution, class token, positions) and of the text embedding, FedCola
    tokens = (shapes.image.size // image.patch) ** 2 + 1
    assert 3 * image.patch**2 * 384 + 384 + 384 + tokens * 384 == 371_328
    assert (shapes.text.vocabulary + scenario.model.text.tokens + 2 + 2) * 384 == 11_737_344
    training = scenario.training
    assert (training.optimizer, training.lr, training.batch, training.epochs) == ("adamw", 1e-4, 112, 5)
    assert (scenario.schedule_name, scenario.schedule_options.rounds) == ("end-to-end", 30)


# --- the schema ------------------------------------------------------------------------------------------------------


def test_the_schema_offers_what_is_registered() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {"edgefl", "name", "seed", "compare", *SECTIONS}
    for noun in ("method", "schedule"):
        offered = [name for form in schema["properties"][noun]["anyOf"] for name in form.get("enum", [])]
        assert offered == registry.names(noun)
        for name in offered:
            body = schema["$defs"][f"{noun}.{name}"]
            assert body["properties"]["name"] == {"const": name}
            assert body["additionalProperties"] is False
    assert "model.image.vit" in schema["$defs"]
    assert schema["$defs"]["method.fedcola"]["properties"]["compensation"]["description"]


@pytest.mark.parametrize(
    ("data", "valid"),
    [
        ({"edgefl": 1}, True),
        ({"edgefl": 1, "method": "fedavg", "schedule": "layerwise", "executor": "inline", "data": "glyphs"}, True),
        ({"edgefl": 1, "method": {"name": "fedcola", "complementary": "mlp"}}, True),
        ({"edgefl": 1, "fleet": {"budgets": {"memory": "12..48 MiB", "energy_per_round": "2 kJ"}}}, True),
        ({"edgefl": 1, "round": {"cohort": "25%", "deadline": "10 min"}}, True),
        ({"edgefl": 1, "model": {"image": {"blocks": 2}, "text": {"tower": "transformer", "tokens": 8}}}, True),
        ({}, False),
        ({"edgefl": 2}, False),
        ({"edgefl": 1, "sede": 1}, False),
        ({"edgefl": 1, "method": "fedkola"}, False),
        ({"edgefl": 1, "method": {"name": "fedavg", "complementary": "mlp"}}, False),
        ({"edgefl": 1, "model": {"image": {"blocs": 2}}}, False),
        ({"edgefl": 1, "training": {"lr": "fast"}}, False),
        ({"edgefl": 1, "compare": {"schedule": "layerwise"}}, False),
    ],
)
def test_the_schema_tells_right_from_wrong(data: dict[str, Any], valid: bool, schema: Draft202012Validator) -> None:
    assert schema.is_valid(data) is valid
