"""The table over links has the seconds, peaks and bytes that ``edgefl profile`` gives on one device and link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import edgefl
from tools.pages.fine_tune_links import DEVICES, HALF, LINKS, WayFigures, figures_of

Tiny = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("way", "smallest"),
    [
        (f"schedule={{name: split, after: {HALF}, rounds: 3}}", False),
        ("schedule={name: layerwise, stages: 2, rounds: 3, allocation: [1, 2]}", False),
        ("schedule={name: elastic, stages: 2, rounds: 3}", True),
    ],
)
def test_figures_are_those_of_profile_on_each_device_and_link(tiny: Tiny, way: str, smallest: bool) -> None:
    found = figures_of(tiny(), "image", [way], smallest=smallest)
    for device in (DEVICES[0], DEVICES[-1]):
        for link, seconds in zip(LINKS, found.seconds[device], strict=True):
            given = [way.replace(HALF, "1"), f"fleet.devices={device}", f"fleet.links={link}"]
            stages = [each for each in edgefl.profile(tiny(), given).rows if each.kind == "image"]
            if smallest:
                stages = [min(stages, key=lambda each: each.peak_memory_bytes)]
            rounds = sum(each.rounds for each in stages)
            assert found.peak_bytes == max(each.peak_memory_bytes for each in stages)
            both = sum(each.rounds * (each.download_bytes + each.upload_bytes) for each in stages)
            assert found.moved_bytes == pytest.approx(both / rounds)
            assert seconds == pytest.approx(sum(each.rounds * each.virtual_seconds for each in stages) / rounds)


def test_seconds_stand_in_brackets_where_memory_is_lacking() -> None:
    figures = WayFigures(3e9, 5e6, {"phone-mid": [1.4, 2.6], "macbook-air-m1": [0.6, 1000.0]})
    assert figures.cells() == ["2,861", "5.0", "(1 / 3)", "1 / 1,000"]
