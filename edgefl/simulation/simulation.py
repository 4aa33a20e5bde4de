"""The simulation: rounds on a virtual clock, with real training behind futures.

Virtual time comes from predicted cost, so the clock never waits for real compute.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import isfinite
from time import monotonic
from typing import Any

import numpy as np
from torch import Tensor

from edgefl.errors import DivergedError
from edgefl.runs import CARBON, SUMMED
from edgefl.schedules import Seen, Stage, movement
from edgefl.simulation.ahead import Ahead
from edgefl.simulation.arrivals import Tally
from edgefl.simulation.checkpoint import checkpoint_of, restore
from edgefl.simulation.client_evaluation import score_clients
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.events import EventEngine
from edgefl.simulation.learning import Training
from edgefl.simulation.rounds.overlapping import overlapping, take
from edgefl.simulation.rounds.synchronous import synchronous
from edgefl.simulation.run_state import Events, RunState
from edgefl.simulation.server import deliver_final, evaluate, run_server_works


class Simulation(RunState):
    """One run: ``run`` plays all rounds of the schedule, or the remaining ones after ``restore``."""

    def checkpoint(self) -> None:
        """Write a checkpoint of everything that the next round depends on, and the best weights if they are new."""
        if self.watch is not None and self.watch.unwritten is not None:
            self.journal.keep_best(self.setup.method.exported(self.watch.unwritten), self.watch.best)
            self.watch.unwritten = None
        self.journal.checkpoint(self.round, *checkpoint_of(self))

    def restore(self, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore the checkpoint written after ``round``.  Raises RunError if it doesn't match this setup."""
        restore(self, round, tensors, state)

    def restore_part(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on in the middle of the next round, with the clients that had trained in it."""
        if isinstance(self.learning, Training):
            self.learning.resume_part(tensors, state)

    def run(self, rounds: int | None = None) -> dict[str, Any]:
        """Play the remaining rounds, up to the number ``rounds`` if it is given; return final metrics and totals."""
        self.last_round = rounds
        env = Clock(initial_time=self.now)
        if self._by_event:
            self.engine = EventEngine(env, self.wires)
            self.engine.restore(self.resumed)
            if self.policy.refills and not isinstance(self.learning, Training):
                self.ahead = Ahead()
        if self.diverged is not None and self.on_divergence == "stop":
            raise self.divergence_error()  # a resumed run
        if not self.over:
            env.run(env.process(self._rounds(env)))
        self.learning.leave()
        watched = {} if self.watch is None else {"stopped": self.watch.stopped, "best": self.watch.best}
        return {
            "rounds": self.round,
            "virtual_seconds": self.now,
            "metrics": self.metrics,
            "totals": dict(self.totals),
            **watched,
        }

    def _rounds(self, env: Clock) -> Events:
        written = monotonic()
        while not self.over:
            yield from self._round(env, self.round + 1)
            self.round += 1
            take(self)
            stops = self.diverged is not None and self.on_divergence == "stop"
            if stops or self.over or monotonic() - written >= self.checkpoint_seconds:
                self.checkpoint()
                written = monotonic()
            if stops:
                raise self.divergence_error()

    def divergence_error(self) -> DivergedError:
        """The error of a run that stops because the model diverged."""
        return DivergedError(
            f"the model diverged in round {self.round}: {self.diverged}; with training.on_divergence: continue the run "
            "goes on all the same"
        )

    def _round(self, env: Clock, round: int) -> Events:
        setup, started = self.setup, self.now
        stage = setup.schedule.stage(round)
        before = self.state.tensors if setup.schedule.adapts else {}
        tally = Tally()
        yield from run_server_works(self, env, setup.method.before(self.state, round), round, "before", tally.server)
        self.judge(round)
        kinds = [kind for kind in setup.clients.kinds if setup.participates(kind, round)]
        play = overlapping if self.policy.overlapping else synchronous
        outcome = yield from play(self, env, round, stage, kinds, tally)
        if outcome == "completed":
            yield from run_server_works(self, env, setup.method.after(self.state, round), round, "after", tally.server)
        metrics: dict[str, dict[str, float | None]] = {}
        watched: dict[str, Any] = {} if self.watch is None else {"watched": {}, "stopped": None}
        if round == setup.schedule.rounds or round % setup.evaluation.every == 0:
            metrics = yield from self._evaluated(env, round, tally.server, watched)
            self.metrics = metrics
            if self.scoring is not None:
                tally.scored = score_clients(self, self.scoring, round)
        self._note_divergence(round, tally, metrics)
        final = yield from deliver_final(self, env, round)
        tally.sums["download_bytes"] += final[0]
        tally.sums["serialised_download_bytes"] += final[1]
        tally.sums["carried_download_bytes"] += final[1]
        self._write(round, stage, kinds, outcome, started, tally, metrics, final[0], watched)
        if setup.schedule.adapts:
            setup.schedule.learn(Seen(round, metrics, _mean_losses(tally), movement(before, self.state.tensors)))

    def _evaluated(self, env: Clock, round: int, server: list[dict[str, Any]], watched: dict[str, Any]) -> Events:
        """Evaluate; return the metrics of ``evaluation.final`` after the last round, else of ``evaluation.split``.

        With metrics to follow, the last round is evaluated on both; ``watched`` gets what they say.
        """
        splits, last = self.setup.evaluation, round == self.setup.schedule.rounds
        if self.watch is None:
            return (yield from evaluate(self, env, round, splits.final if last else splits.split, server))
        metrics = yield from evaluate(self, env, round, splits.split, server)
        self.watch.sees(metrics, round, self.state)
        watched |= {"watched": self.watch.values(metrics), "stopped": self.watch.stopped}
        if (last or self.watch.stopped is not None) and splits.final != splits.split:
            metrics = yield from evaluate(self, env, round, splits.final, server)
        return metrics

    def _note_divergence(self, round: int, tally: Tally, metrics: Mapping[str, Mapping[str, float | None]]) -> None:
        """Set ``diverged`` to what isn't finite after this round, with a warning where the round before was finite."""
        before, self.diverged = self.diverged, None
        bad_losses = [kind for kind, losses in tally.all_losses.items() if not any(map(isfinite, losses))]
        bad_metrics = [f"{kind} {name}" for kind, v in metrics.items() for name, value in v.items() if value is None]
        if bad := self.learning.non_finite():
            self.diverged = f"the tensor {bad[0]} has NaN or infinity"
        elif bad_metrics:
            self.diverged = f"the scores behind the metric {bad_metrics[0]} have NaN or infinity"
        elif bad_losses:
            self.diverged = f"no loss of the {bad_losses[0]} clients is finite"
        if self.diverged is not None and before is None and self.on_divergence == "continue":
            warnings.warn(f"the model diverged in round {round}: {self.diverged}", RuntimeWarning, stacklevel=2)

    def _write(
        self,
        round: int,
        stage: Stage,
        kinds: Sequence[str],
        outcome: str,
        started: float,
        tally: Tally,
        metrics: Mapping[str, Mapping[str, float | None]],
        final_delivery_bytes: int,
        watched: Mapping[str, Any],
    ) -> None:
        setup = self.setup
        able = {kind: self.roster.able(kind) for kind in kinds}
        finished, late = tally.outcomes["finished"], tally.outcomes["late"]
        carbon = CARBON if setup.fleet.carbon_intensity is not None else ()
        record = {
            "round": round,
            "stage": stage.index,
            "outcome": outcome,
            "started_virtual_seconds": started,
            "virtual_seconds": self.now - started,
            "finished_virtual_seconds": self.now,
            "clients": {kind: len(setup.of_kind(kind)) for kind in kinds},
            "eligible": {kind: len(clients) for kind, clients in able.items()},
            "samples": {kind: setup.samples_of_kind[kind] for kind in kinds},
            "eligible_samples": {kind: self.roster.able_samples(kind) for kind in kinds},
            "excluded": self._excluded(kinds),
            "selected": tally.selected,
            "unavailable": tally.unavailable,
            "under_way": self.under_way(),
            "finished": finished,
            "late": late,
            "failed": sum(tally.outcomes.values()) - finished - late,
            "outcomes": dict(tally.outcomes),
            "rejected": sorted(tally.rejected),
            "rejections": dict(tally.rejections),
            **{name: tally.sums[name] for name in SUMMED},
            **{name: float(tally.sums[name]) for name in carbon},
            "final_delivery_bytes": final_delivery_bytes,
            "server_seconds": sum(w["seconds"] for w in tally.server),
            "server_works": tally.server,
            **setup.rate_record(round),
            "losses": _mean_losses(tally),
            "metrics": metrics,
            **watched,
            "diverged": self.diverged is not None,
            **({"client_metrics": tally.scored.sums} if self.scoring is not None else {}),
        }
        added = (*SUMMED, *carbon, "selected", "unavailable", "finished", "late", "failed")
        self.totals.update({name: record[name] for name in added})
        self.totals["server_seconds"] += record["server_seconds"]
        self.journal.append_lines("clients", [*tally.lines, *tally.scored.lines])
        self.journal.append("rounds", [record])
        self.record_scratch(round)
        self.journal.append("host", tally.hosts)
        if tally.learnt:
            # of several updates of one client the last counts
            last = {update[0]: update for update in tally.learnt}
            clients, losses, seconds, counts = zip(*last.values(), strict=True)
            self.selection.learn(
                np.array(clients, np.int64), np.array(losses, float), np.array(seconds), np.array(counts), round
            )
        self.on_progress("record", record)

    def _excluded(self, kinds: Sequence[str]) -> dict[str, Any]:
        """Samples, classes and modalities that are lost with the ineligible clients of these kinds."""
        key = (self.roster.changes, tuple(kinds))
        if self._lost[0] != key:
            members = np.zeros(len(self.roster.eligible), bool)
            for kind in kinds:
                members[self.setup.of_kind(kind)] = True
            lost = self._coverage.left(members, members & self.roster.eligible)
            names = ("excluded_samples", "lost_classes", "lost_modalities", "modality_samples_share")
            self._lost = key, {name.removeprefix("excluded_"): lost[name] for name in names}
        return self._lost[1]


def _mean_losses(tally: Tally) -> dict[str, float | None]:
    """Mean loss of each kind over the samples of its accepted updates; None where no loss of the kind is finite."""
    means: dict[str, float | None] = {
        kind: sum(loss * samples for loss, samples in losses) / sum(samples for _, samples in losses)
        for kind, losses in tally.losses.items()
    }
    return means | {kind: None for kind, losses in tally.all_losses.items() if not any(map(isfinite, losses))}
