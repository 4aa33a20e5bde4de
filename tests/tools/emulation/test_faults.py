"""Faults of emulated clients end as the simulator says for the same fault: outcome, phase, and bytes that were carried.

One client trains in a fraction of a second and sends its update over a line on which that takes about two seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.planning.planner import Plan, Planner
from edgefl.scenario import load
from edgefl.setup.compose import compose, federation_of, predictor_of
from edgefl.training import Assignment
from tools.emulation.client_process import Data
from tools.emulation.emulator import EmulatedClient, EmulatedRound, Emulator
from tools.emulation.journal import MachineJournal
from tools.emulation.links import Rates
from tools.emulation.playing import emulate

LATENCY = 0.05
UPLOAD_SECONDS = 2.0


class One:
    """A scenario's first client: its plan, its task, and an emulator with it alone."""

    def __init__(self, scenario: dict[str, Any]):
        given = load(scenario)
        setup = compose(given)
        planner = Planner(setup, predictor_of(given))
        self.plan: Plan = planner.plan(*setup.cell_indices(0), 1, setup.schedule.stage(1), ())
        inputs = setup.method.at_start(given.seed).wire(self.plan.form)
        self.task = Assignment(
            self.plan.form, planner.scalars(self.plan.kind, 1, self.plan.stage), inputs, 0, given.seed
        )
        self.bytes = self.plan.traffic.serialised_upload_bytes
        self.rate = 8 * self.bytes / UPLOAD_SECONDS
        machine = EmulatedClient(
            0, min(os.sched_getaffinity(0)), 0.5, float("inf"), Rates(8 * self.rate, self.rate), LATENCY
        )
        data = Data(given.data.model_dump_json(), given.seed, given.model.tokens, None, 0.0, registry.for_workers())
        self.emulator = Emulator(federation_of(given, lambda _: None), data, [machine])

    def flown(self, deadline: float = float("inf")) -> EmulatedRound:
        """A round of the client."""
        self.emulator.submit(self.task)
        return self.emulator.fly({0: self.plan}, deadline)[0]

    def broken(
        self, fault: Callable[[], object], share: float, usual: EmulatedRound, deadline: float = float("inf")
    ) -> EmulatedRound:
        """A round in which something happens when this share of its upload has passed, by the time of a usual round."""
        after = usual.download_seconds + usual.compute_seconds + LATENCY + share * UPLOAD_SECONDS
        flown: list[EmulatedRound] = []
        thread = threading.Thread(target=lambda: flown.append(self.flown(deadline)))
        thread.start()
        time.sleep(after)
        fault()
        thread.join()
        return flown[0]


@pytest.fixture
def one(able: None, tiny: Callable[..., dict[str, Any]]) -> Iterator[One]:
    wider = {"blocks": 2, "width": 64, "heads": 2}
    made = One(tiny(data={**tiny()["data"], "clients": {"image": 1}}, model={"image": wider}))
    with made.emulator:
        yield made
    MachineJournal().close()


@pytest.mark.slow(smaller="test_the_kernel_counts_the_payload_and_its_headers")
def test_a_link_of_half_the_rate_takes_twice_as_long(one: One) -> None:
    usual = one.flown()
    assert usual.ended_in is None
    assert usual.upload_seconds == pytest.approx(LATENCY + UPLOAD_SECONDS, rel=0.05)
    one.emulator.network.shape(0, Rates(8 * one.rate, one.rate / 2))
    slowed = one.flown()
    assert slowed.upload_seconds == pytest.approx(LATENCY + 2 * UPLOAD_SECONDS, rel=0.05)


@pytest.mark.slow(smaller="test_a_stream_that_ends_early_is_told")
def test_a_client_that_dies_in_mid_upload_has_carried_a_part(one: One) -> None:
    usual = one.flown()
    process = one.emulator.process(0)
    died = one.broken(process.kill, 0.5, usual)
    assert (died.ended_in, died.killed, died.late) == ("upload", False, False)
    assert died.upload_bytes / one.bytes == pytest.approx(0.5, abs=0.15)
    assert died.upload_seconds == pytest.approx(LATENCY + 0.5 * UPLOAD_SECONDS, abs=0.3)
    again = one.flown()  # it takes part no more
    assert again.ended_in == "start"


@pytest.mark.slow(smaller="test_a_stream_that_ends_early_is_told")
def test_a_link_that_goes_down_in_mid_upload_ends_at_the_deadline(one: One) -> None:
    usual = one.flown()
    deadline = usual.download_seconds + usual.compute_seconds + LATENCY + 1.5 * UPLOAD_SECONDS
    down = one.broken(lambda: one.emulator.network.up(0, up=False), 0.5, usual, deadline)
    assert (down.ended_in, down.late) == ("upload", True)
    assert down.upload_bytes / one.bytes == pytest.approx(0.5, abs=0.15)
    assert down.download_seconds + down.compute_seconds + down.upload_seconds == pytest.approx(deadline, abs=0.1)


@pytest.mark.slow(smaller="test_a_stream_that_ends_early_is_told")
def test_a_deadline_in_mid_upload_ends_both_clocks_alike(
    able: None, tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The simulation's record of the same fault: outcome, phase, and the part of the update that was carried."""
    scenario = tiny(
        data={**tiny()["data"], "clients": {"image": 2}},
        model={"image": {"blocks": 2, "width": 64, "heads": 2}},
        schedule={"name": "end-to-end", "rounds": 1},
        fleet={"devices": "raspberry-pi-4-4gb", "links": "3g"},
    )
    rows = emulate(scenario, out=tmp_path / "whole")["client_rounds"]
    assert len(rows) == 2
    slowest = max(rows, key=lambda row: row["emulated_round_seconds"])
    assert slowest["emulated_upload_seconds"] > 1.0
    deadline = slowest["emulated_round_seconds"] - 0.5 * slowest["emulated_upload_seconds"]
    limited = {**scenario, "round": {"cohort": 1.0, "deadline": deadline, "gate": "everyone"}}
    emulate(limited, out=tmp_path / "cut")
    simulated, emulated, replayed = (
        list(edgefl.read_run(tmp_path / "cut" / name).each("clients")) for name in ("simulated", "emulated", "replayed")
    )
    assert len(emulated) == 2
    for ours, theirs, again in zip(simulated, emulated, replayed, strict=True):
        assert (ours["outcome"], ours["phase"]) == (theirs["outcome"], theirs["phase"]) == ("late", "upload")
        assert theirs["virtual_seconds"] == pytest.approx(deadline, abs=0.1)
        whole = ours["serialised_upload_bytes"]
        assert theirs["carried_upload_bytes"] / whole == pytest.approx(ours["carried_upload_bytes"] / whole, abs=0.15)
        assert theirs["lost_upload_bytes"] == theirs["carried_upload_bytes"]
        assert again["compute_seconds"] == pytest.approx(theirs["compute_seconds"], rel=1e-9)
