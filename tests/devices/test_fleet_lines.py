"""What is wrong with a fleet in a scenario's file is said in one line each, with the file's line and the key."""

from __future__ import annotations

import json

import pytest

from edgefl.errors import ScenarioError
from edgefl.scenario import load

HEAD = "edgefl: 1\ndata: {clients: {image: 12}}\nmodel: {image: {tower: vit}}\nfleet:\n"


def _written(tmp_path, fleet):
    file = tmp_path / "s.yaml"
    file.write_text(HEAD + "".join(f"  {line}\n" for line in fleet))
    return file


@pytest.mark.parametrize(
    ("fleet", "line", "said"),
    [
        (["like: phonez"], 5, "fleet.like: unknown fleet 'phonez'; did you mean 'phones'?"),
        (["like: phones", "budgets: {memory: 0}"], 6, "fleet.budgets.memory: a budget must be positive, not 0"),
        (["availability: allways"], 5, "fleet.availability: unknown availability 'allways'; did you mean 'always'?"),
        (["availability: 3"], 5, "fleet.availability: must be 'always' or a mapping"),
        (["availability: {markow: {on: 2 h}}"], 5, "fleet.availability.markow: unknown key 'markow'; did you mean"),
        (["availability:", "  markov:", "    on: 2 h"], 6, "fleet.availability.markov.off: is missing"),
        (
            ["availability:", "  diurnal:", "    stort: 18:00..23:00"],
            7,
            "fleet.availability.diurnal.stort: unknown key 'stort'; did you mean 'start'?",
        ),
        (["availability:", "  markov: {on: 1, off: 1}", "  diurnal: {}"], 5, "diurnal and markov are given together"),
        (
            ["failures: {download: 60%, upload: 50%}"],
            5,
            "fleet.failures: the shares (download 60 %, upload 50 %) add up",
        ),
        (["server_link:", "  download: 0 bit/s"], 6, "fleet.server_link.download: a rate must be more than 0 bit/s"),
        (["server_link: {sharing: fiar}"], 5, "must be 'fair' or 'fifo', not 'fiar'; did you mean 'fair'?"),
        (["battery:", "  capacity: 0 Wh"], 6, "fleet.battery.capacity: a battery must hold more than 0 J"),
        (["battery: {initial: 120%}"], 5, "fleet.battery.initial: '120%' is too large"),
        (["throttling: 3"], 5, "fleet.throttling: must be true or false, not 3"),
    ],
)
def test_a_wrong_fleet_is_one_line(tmp_path, fleet, line, said):
    file = _written(tmp_path, fleet)
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}:{line}: fleet.")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_fleet_resolves_to_itself(tmp_path):
    fleet = [
        "like: phones",
        "server_link: {download: 1 Gbit/s, upload: 500 Mbit/s, sharing: fifo}",
        "availability: {diurnal: {hours: 8..10 h, start: 18:00..23:00, jitter: 30 min}}",
        "failures: {training: 5%, corrupted: 1%, slow_down: {share: 10%, factor: 2..4}}",
        "battery: {capacity: 10..20 Wh, initial: 0..100%, reserve: 20%, charge_watts: 5 W, idle: true}",
        "budgets: {memory: 40% of device, within_device: true}",
    ]
    scenario = load(_written(tmp_path, fleet))
    assert scenario.fleet.availability.diurnal.start == (18, 23)
    assert len(scenario.fleet.devices) > 1
    assert load(json.loads(json.dumps(scenario.to_data()))).fleet == scenario.fleet
