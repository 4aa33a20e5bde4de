"""What goes wrong on a client's side: shares that are met, one fate per client and round, whoever else is asked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from edgefl.devices import FailureOptions, FleetOptions, draw_failures, failures

ALL = {"before_download": 0.1, "download": 0.2, "training": 0.05, "upload": 0.15, "corrupted": 0.3, "truncated": 0.02}


def test_the_shares_are_met():
    options = FailureOptions(**ALL, slow_down={"share": "25%", "factor": "2..4"})
    drawn = draw_failures(options, 1, 3, np.arange(100_000))
    assert drawn.phase.dtype == np.int8
    shares = np.bincount(drawn.phase, minlength=7) / 100_000
    expected = [1 - sum(ALL.values()), *ALL.values()]
    assert shares == pytest.approx(expected, abs=5 * np.sqrt(0.25 / 100_000))
    slow = drawn.slow > 1
    assert slow.mean() == pytest.approx(0.25, abs=0.007)
    assert np.all(drawn.slow[~slow] == 1)
    assert (drawn.slow[slow].min(), drawn.slow[slow].max()) == pytest.approx((2, 4), abs=0.01)
    assert abs(np.corrcoef(slow, drawn.phase > 0)[0, 1]) < 0.02  # slow or not has nothing to do with failing
    for phase in (failures.DOWNLOAD, failures.TRAINING, failures.UPLOAD, failures.TRUNCATED):
        got = drawn.fraction[drawn.phase == phase]
        assert got.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / len(got)))
    assert set(drawn.fraction[np.isin(drawn.phase, (failures.NONE, failures.CORRUPTED))]) == {1.0}
    assert set(drawn.fraction[drawn.phase == failures.BEFORE]) == {0.0}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.integers(0, 1000), st.integers(0, 100))
def test_a_fate_is_a_clients_own(clients, seed, round_):
    options = FailureOptions(**ALL, slow_down={"share": 0.5})
    together = draw_failures(options, seed, round_, clients)
    for i, client in enumerate(clients):
        alone = draw_failures(options, seed, round_, [client])
        for name in ("phase", "fraction", "slow"):
            assert getattr(alone, name)[0] == getattr(together, name)[i]


def test_every_round_is_drawn_anew():
    options = FailureOptions(download="50%")
    first, second = (draw_failures(options, 1, round_, np.arange(1000)).phase for round_ in (1, 2))
    assert 0.4 < (first == second).mean() < 0.6


@pytest.mark.parametrize(
    ("written", "phase"),
    [({}, failures.NONE), ({"upload": 1}, failures.UPLOAD), ({"truncated": 1}, failures.TRUNCATED)],
)
def test_nobody_and_everybody(written, phase):
    drawn = draw_failures(FailureOptions(**written), 1, 1, np.arange(5000))
    assert set(drawn.phase) == {phase}
    assert np.all(drawn.slow == 1)
    assert len(draw_failures(FailureOptions(**written), 1, 1, []).phase) == 0


def test_a_larger_share_takes_nobody_out():
    some = draw_failures(FailureOptions(before_download="10%"), 1, 1, np.arange(5000)).phase > 0
    more = draw_failures(FailureOptions(before_download="30%"), 1, 1, np.arange(5000)).phase > 0
    assert np.all(more[some])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            {"download": "60%", "upload": "50%"},
            "(download 60 %, upload 50 %) add up to 110 %, which is more than 100 %",
        ),
        ({"download": "120%"}, "between 0 and 1"),
        ({"download": -0.1}, "negative"),
        ({"slow_down": {"share": 0.1, "factor": 0.5}}, "must be at least 1"),
        ({"slow_down": {"share": 0.1, "factor": "4..2"}}, "empty range"),
        ({"slow_down": {"share": 0.1, "factor": "3 s"}}, "unknown unit 's'"),
        ({"slow_down": {"share": 2}}, "between 0 and 1"),
        ({"uploads": 0.1}, "Extra inputs"),
    ],
)
def test_what_a_person_is_told(written, said):
    with pytest.raises(ValidationError) as caught:
        FleetOptions.model_validate({"failures": written})
    assert any(said in error["msg"] for error in caught.value.errors())


def test_options_round_trip_through_json():
    options = FailureOptions.model_validate({**ALL, "slow_down": {"share": "10%", "factor": "2..5"}})
    assert FailureOptions.model_validate(json.loads(options.model_dump_json())) == options
    assert FailureOptions(download=0.7, upload=0.3) != FailureOptions()  # exactly all of them is allowed
