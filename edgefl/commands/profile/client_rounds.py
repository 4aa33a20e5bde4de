"""A client's round: what it costs one client of each kind at every stage, and what a profile adds up of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from edgefl.commands.profile.answer import (
    ClientEvaluationRow,
    Computed,
    FlopsColumns,
    Peaks,
    ProfileRow,
    Tables,
    TrafficColumns,
)
from edgefl.commands.profile.fleet_clients import client_rows
from edgefl.commands.profile.profile_options import ProfileOptions
from edgefl.commands.profile.schedule_totals import (
    client_totals,
    process_fields,
    round_totals,
    server_rows,
    stretches,
)
from edgefl.cost.client_cost import ComputeCost, traffic
from edgefl.cost.price import price_rounds
from edgefl.cost.traced_ahead import PriceRequest
from edgefl.devices import Device, Link, available_memory_bytes, runtime_range
from edgefl.operator_classes import OPERATOR_NAMES
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.planning.planner import Planner, exchange_record
from edgefl.planning.subjects import Subject, rounds_of, shown_round, subjects, works_of
from edgefl.records.record import UNSET, copy_fields
from edgefl.runs.progress import OnProgress, messages
from edgefl.schedules import Stage

PRICE_COLUMNS = ("download_seconds", "compute_seconds", "virtual_seconds", "energy_joules")
"""Columns of a row of the table that are copied from the ``Price`` of its device and link."""


def shown_works(planner: Planner, wanted: ProfileOptions) -> Iterator[PriceRequest]:
    """The works that the rows of a profile show, to be priced side by side."""
    return works_of(planner, wanted.kinds_of(planner.setup), wanted.stages_of(planner.setup))


def tables_of(planner: Planner, wanted: ProfileOptions, on_progress: OnProgress, label: str) -> Tables:
    """The lists of a profile; they are empty if there are no such stage and kind."""
    setup = planner.setup
    device, link = wanted.device_of(setup), wanted.link_of(setup)
    kinds, stages = wanted.kinds_of(setup), wanted.stages_of(setup)
    if not kinds or not stages:
        return Tables(
            rows=[], totals=[], server_rows=[], round_totals=[], client_evaluation_rows=[],
            clients=[] if wanted.clients else UNSET,
        )  # fmt: skip
    on_message = messages(on_progress, f"{label}: ")
    shown = subjects(planner, kinds, stages)
    rows = []
    for stage in stages:
        for subject in shown:
            on_message(f"stage {stage.index} of {len(setup.schedule.offered)}, {subject.name}")
            rows.append(_row(planner, stage, subject, device, link))
    on_message("server and totals")
    spans = stretches(planner, wanted.stage)
    server = server_rows(planner, spans, wanted.kind)
    totals = client_totals(planner, spans, shown, device, link) if wanted.stage is None else []
    if totals and setup.shortest is not None:
        short = Planner(setup.shortest, planner.predictor)
        least = client_totals(short, stretches(short), shown, device, link)
        totals = [
            replace(row, fewest_rounds=fewest.rounds, least_traffic_bytes=fewest.traffic_bytes)
            for row, fewest in zip(totals, least, strict=True)
        ]
    return Tables(
        rows=rows,
        totals=totals,
        server_rows=server,
        round_totals=round_totals(planner, spans, server) if wanted.kind is None else [],
        client_evaluation_rows=client_evaluation_rows(planner, stages, shown, device, link),
        clients=client_rows(planner, wanted.stage, wanted.kind) if wanted.clients else UNSET,
    )


def _row(planner: Planner, stage: Stage, subject: Subject, device: Device, link: Link) -> ProfileRow:
    setup, kind = planner.setup, subject.kind
    client = subject.largest(setup)
    demand = planner.demand(client, shown_round(setup, stage, kind), stage)
    throttling = setup.fleet.throttling
    computed, moved = demand.compute, demand.traffic
    hot, cold = (price_rounds([(computed, moved)], device, link, throttling=each) for each in (True, False))
    price = hot if throttling else cold
    return ProfileRow(
        kind=kind,
        variant=subject.shown_variant,
        stage=stage.index,
        part=stage.label or UNSET,
        rounds=sum(1 for _ in rounds_of(setup, stage, kind)),
        fewest_rounds=sum(1 for _ in rounds_of(setup.shortest, stage, kind)) if setup.shortest else UNSET,
        **process_fields(computed, device),
        memory_assumed=computed.memory_assumed,
        runtime=runtime_range(device, setup.fleet.runtime),
        exchange=exchange_record(computed.exchange),
        host_memory_bytes=computed.host_memory_bytes or UNSET,
        available_memory_bytes=available_memory_bytes(device),
        **copy_fields(Computed, computed),
        fvcore_macs_per_sample=computed.fvcore_macs_per_sample,
        **copy_fields(TrafficColumns, moved),
        **{name: getattr(price, name).item() for name in (*PRICE_COLUMNS, "upload_seconds")},
        compute_seconds_by_class=seconds_by_class(computed, device),
        samples=int(setup.clients.client_samples[client]),
        device=device.name,
        link=link.name,
        throttling_seconds=(hot.compute_seconds - cold.compute_seconds).item(),
        throttling_included=throttling,
    )


def seconds_by_class(computed: ComputeCost, device: Device) -> dict[str, float]:
    """Seconds of a client's computing by class of operator, of loading its model and of waiting for launches."""
    spent = computed.seconds_by_class(device)
    every: dict[str, float] = dict(zip(OPERATOR_NAMES, spent.by_class.tolist(), strict=True))
    every |= {"launches": spent.waiting, "loading": computed.load_seconds(device)}
    return {name: seconds for name, seconds in every.items() if seconds}


def client_evaluation_rows(
    planner: Planner, stages: Sequence[Stage], shown: Sequence[Subject], device: Device, link: Link
) -> list[ClientEvaluationRow]:
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
            scoring = scored.scoring(client, rounds[0] if rounds else setup.schedule.rounds, stage, lambda *_: ())
            moved = traffic(scoring.down, (), planner.buffers)
            computed = scoring.compute
            price = price_rounds([(computed, moved)], device, link, throttling=setup.fleet.throttling)
            rows.append(
                ClientEvaluationRow(
                    kind=subject.kind,
                    variant=subject.shown_variant,
                    stage=stage.index,
                    part=stage.label or UNSET,
                    samples=int(sizes[client]),
                    **copy_fields(Peaks, computed),
                    **copy_fields(FlopsColumns, computed),
                    download_bytes=moved.download_bytes,
                    serialised_download_bytes=moved.serialised_download_bytes,
                    **{name: getattr(price, name).item() for name in PRICE_COLUMNS},
                    device=device.name,
                    link=link.name,
                )
            )
    return rows
