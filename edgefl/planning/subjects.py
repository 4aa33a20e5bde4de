"""Whose costs rows show: the client kinds, or their variants where these cost different things."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefl.arrays import AnyArray
from edgefl.cost.traced_ahead import PriceRequest
from edgefl.errors import ScenarioError, UnknownName
from edgefl.planning.planner import Planner
from edgefl.planning.setup import Setup
from edgefl.records.record import UNSET, Maybe
from edgefl.schedules import Stage
from edgefl.work import Source, Work
from edgefl.work.halves import client_part


@dataclass(frozen=True)
class Subject:
    """Clients whose rows show the costs of one of them: those of a kind, or of one variant of it.

    ``variant`` is that of the client with the most samples, and ``named`` says that it has rows of its own, because
    the kind's other variants cost something else.
    """

    kind: str
    variant: Hashable
    members: AnyArray
    named: bool = False

    @property
    def shown_variant(self) -> str | Maybe:
        """The ``variant`` of a row: UNSET where the kind has one row."""
        return str(self.variant) if self.named else UNSET

    @property
    def name(self) -> str:
        """The kind, with the variant where it is named: ``image, slow``."""
        return f"{self.kind}, {self.variant}" if self.named else self.kind

    def largest(self, setup: Setup) -> int:
        """The client with the most samples."""
        return int(self.members[np.argmax(setup.clients.client_samples[self.members])])


def subjects(planner: Planner, kinds: Sequence[str], stages: Sequence[Stage]) -> list[Subject]:
    """The kinds, and in place of a kind whose variants cost different things at one of these stages its variants."""
    setup, found = planner.setup, list[Subject]()
    for kind in kinds:
        variants = setup.method.variants[kind]
        costs = {_cost_of(planner, kind, variant, stages) for variant in variants} if len(variants) > 1 else ()
        if len(costs) > 1:
            found += [Subject(kind, variant, setup.of_variant(kind, variant), named=True) for variant in variants]
        else:
            whole = Subject(kind, None, setup.of_kind(kind))
            found.append(
                replace(whole, variant=setup.variant_of(whole.largest(setup))) if len(whole.members) else whole
            )
    return found


def check_stage_and_kind(stage: int | None, kind: str | None, setups: Sequence[Setup]) -> None:
    """Raise ScenarioError for a stage, or UnknownName for a kind, that none of these has; None is any."""
    kinds = dict.fromkeys(name for setup in setups for name in setup.clients.kinds)
    if kind is not None and kind not in kinds:
        raise UnknownName("client kind", kind, kinds)
    last = max(len(setup.schedule.offered) for setup in setups)
    if stage is not None and not 1 <= stage <= last:
        available = f"stages 1 to {last}" if last > 1 else "stage 1 only"
        raise ScenarioError(f"there is no stage {stage}: the schedule has {available}")


def works_of(planner: Planner, kinds: Sequence[str], stages: Sequence[Stage]) -> Iterator[PriceRequest]:
    """The works that rows of these kinds and stages show."""
    setup = planner.setup
    for subject in subjects(planner, kinds, stages):
        for stage in stages if len(subject.members) else ():
            client, kind = subject.largest(setup), subject.kind
            round = shown_round(setup, stage, kind)
            work, base = planner.work(kind, round, stage, setup.variant_of(client))
            yield planner.price_request(work, base, client)


def largest_works(
    planner: Planner, kind: str | None = None, stage: int | None = None
) -> Iterator[tuple[Subject, Stage, Work, Source]]:
    """What each subject's client with the most samples computes at each stage, of all or of these, and its data.

    Raises ScenarioError for a stage that doesn't exist; UnknownName for an unknown kind.
    """
    setup = planner.setup
    check_stage_and_kind(stage, kind, [setup])
    stages = [offered for offered in setup.schedule.offered if stage in (None, offered.index)]
    shown = subjects(planner, [name for name in setup.clients.kinds if kind in (None, name)], stages)
    for offered in stages:
        for subject in shown:
            source = setup.clients.client(subject.largest(setup))
            work, _ = planner.work(subject.kind, shown_round(setup, offered, subject.kind), offered, subject.variant)
            yield subject, offered, client_part(work.limit_batches(source.size)), source


def _cost_of(planner: Planner, kind: str, variant: Hashable, stages: Sequence[Stage]) -> str:
    """Equal for variants whose clients with equal samples cost the same at these stages."""
    parts = []
    for stage in stages:
        work, base = planner.work(kind, shown_round(planner.setup, stage, kind), stage, variant)
        parts.append((base, work.passes, planner.downloads_and_traffic(work, base, stage, ())[1]))
    return repr(parts)


def largest(setup: Setup, kind: str) -> int:
    """The client of a kind with the most samples."""
    clients = setup.of_kind(kind)
    return int(clients[np.argmax(setup.clients.client_samples[clients])])


def rounds_of(setup: Setup, stage: Stage, kind: str) -> Iterator[int]:
    """The rounds of a stage in which this kind takes part."""
    return (r for r in setup.schedule.rounds_of(stage) if setup.participates(kind, r))


def shown_round(setup: Setup, stage: Stage, kind: str) -> int:
    """The round whose work a row shows: the first of the stage in which the kind takes part.

    A stage without rounds gets the cost that its work would have at that point of the schedule.
    """
    before = sum(s.rounds for s in setup.schedule.stages if s.index < stage.index)
    return next(rounds_of(setup, stage, kind), min(max(before, 1), setup.schedule.rounds))
