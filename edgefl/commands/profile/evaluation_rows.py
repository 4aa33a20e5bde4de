"""What an evaluation on clients' own held-out samples costs a client, by stage and kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefl.commands.profile.subjects import Subject
from edgefl.cost import ClientCost, traffic
from edgefl.devices import Device, Link
from edgefl.planning import Planner
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.schedules import Stage

FIELDS = (
    "peak_memory_bytes",
    "live_memory_bytes",
    "forward_flops",
    "backward_flops",
    "download_bytes",
    "serialised_download_bytes",
    "download_seconds",
    "compute_seconds",
    "virtual_seconds",
    "energy_joules",
)


def client_evaluation_rows(
    planner: Planner, stages: Sequence[Stage], shown: Sequence[Subject], device: Device, link: Link
) -> list[dict[str, Any]]:
    """A row per stage and subject: its client with the most held-out samples, which holds all frozen parameters.

    Empty without ``evaluation.clients``; a kind whose clients hold nothing out has no row.
    """
    setup = planner.setup
    if setup.held_out is None:
        return []
    scored, rows = ScoringPlanner(setup, planner, setup.held_out), []
    sizes = np.asarray(setup.held_out.client_samples)
    for stage in stages:
        rounds = setup.schedule.rounds_of(stage)
        for subject in shown:
            client = int(subject.members[np.argmax(sizes[subject.members])])
            if not sizes[client]:
                continue
            scoring = scored.scoring(client, rounds[0] if rounds else setup.schedule.rounds, stage, _none_stale)
            moved = traffic(scoring.down, (), planner.buffers)
            cost = ClientCost.on(scoring.cost.compute, moved, device, link, throttling=setup.fleet.throttling)
            record = cost.record()
            rows.append(
                {
                    **subject.fields,
                    "stage": stage.index,
                    "samples": int(sizes[client]),
                    **{field: record[field] for field in FIELDS},
                    "device": device.name,
                    "link": link.name,
                }
            )
    return rows


def _none_stale(client: int, work: object, stage: object) -> tuple[str, ...]:
    return ()
