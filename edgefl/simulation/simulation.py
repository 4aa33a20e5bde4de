"""The simulation: rounds on a virtual clock, with real training behind futures.

Virtual time comes from predicted cost, so the clock never waits for real compute.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from time import monotonic
from typing import Any, Literal

import numpy as np
from torch import Tensor

from edgefl.cost.predict import Predictor
from edgefl.devices.availability import Presence
from edgefl.errors import DivergedError, RunError
from edgefl.methods import ServerState
from edgefl.planning.client_evaluation import ScoringPlanner
from edgefl.planning.coverage import DataCoverage
from edgefl.planning.planner import Planner
from edgefl.planning.privacy import PrivacyAccount
from edgefl.planning.setup import Setup
from edgefl.planning.versions import ClientVersions
from edgefl.records.clients import FlightRecord
from edgefl.records.epsilon import PrivacySpent, SecureSums
from edgefl.records.reading import decode
from edgefl.records.record import UNSET, always, types_of
from edgefl.records.rounds import SUMMED, EarlyStop, Excluded, Round, RoundSums
from edgefl.records.run import FinalSummary
from edgefl.records.writing import line
from edgefl.registry.part_fields import build_part
from edgefl.schedules import EndedRound
from edgefl.simulation.checkpoint import checkpoint_of, load_checkpoint
from edgefl.simulation.client_evaluation import score_clients, score_own_models
from edgefl.simulation.clock import Clock, Steps
from edgefl.simulation.closed_form import Flights, Landings
from edgefl.simulation.cohort import account_of, expected_round
from edgefl.simulation.in_flight import InFlight
from edgefl.simulation.kept import KeptValues
from edgefl.simulation.learning import Learning, NoTraining, Training
from edgefl.simulation.policies import Policy
from edgefl.simulation.policy_rules import policy_fault
from edgefl.simulation.records import ClientLines
from edgefl.simulation.relays import Tier
from edgefl.simulation.roster import Roster
from edgefl.simulation.round_server import RoundServer, play_round
from edgefl.simulation.run_state import (
    OnProgress,
    OnRound,
    RecordWriter,
    RunMoment,
    RunParts,
    RunProgress,
    SimulationRun,
)
from edgefl.simulation.selection.base import Selection
from edgefl.simulation.server import deliver_final, evaluate, run_server_works
from edgefl.simulation.tally import Tally
from edgefl.simulation.watch import MetricWatch
from edgefl.training import Executor

UNTRAINED_SECONDS = 5.0
"""Wall time between checkpoints without training, as a large fleet's takes longer to write than a round to play.  A
choice: so much is played again after a kill."""


class Simulation:
    """Plays a run: ``play`` all rounds of the schedule, or the remaining ones after ``load_data``.

    Without an ``executor`` nothing is trained.  ``events`` plays every flight event by event even where a closed form
    exists; records don't depend on it.  A checkpoint is written after the last round, and after each round that ends
    ``checkpoint_seconds`` of wall time or more after the previous one; None: 0 s with training, else 5 s.  Updates that
    wait for the end of their round take ``updates_memory`` bytes at most; the others lie on disk.  ``flown`` lands the
    flights of a synchronous round, whose works have been submitted, with times from elsewhere (an emulation's wall
    clock).  ``on_round`` gets each round's record before it is written, and may return "stop", which ends the run after
    that round.
    """

    def __init__(
        self,
        setup: Setup,
        executor: Executor | None,
        predictor: Predictor,
        journal: RecordWriter,
        on_progress: OnProgress = lambda event, facts: None,
        *,
        events: bool = False,
        checkpoint_seconds: float | None = None,
        updates_memory: float = inf,
        on_divergence: Literal["stop", "continue"] = "stop",
        flown: Callable[[Flights], Landings] | None = None,
        on_round: OnRound | None = None,
    ):
        if setup.schedule.adapts:
            setup = replace(setup, schedule=setup.schedule.fresh())
        planner = Planner(setup, predictor)
        policy: Policy = setup.round.build_policy()
        selection: Selection = build_part("selection", setup.round.selection, setup.round, setup.seed)
        clients, keeping = len(setup.clients.client_kind), _freezes(setup)
        learning = _learning(setup, planner, executor, journal, updates_memory)
        account = account_of(setup, planner, learning.state.versions)
        scoring = None if setup.held_out is None else ScoringPlanner(setup, planner, setup.held_out)
        parts = RunParts(
            setup,
            planner,
            policy,
            selection,
            Roster(planner, ClientVersions(clients, keeping=keeping)),
            learning,
            setup.fleet.battery.fresh() if setup.fleet.battery is not None else None,
            scoring,
            journal,
            on_progress,
            flown,
            None if setup.fleet.relays is None else Tier(setup.fleet.relays, setup.seed),
            account,
        )
        progress = RunProgress(
            ClientLines(setup, real=flown is not None),
            Presence(setup.fleet.availability, clients),
            ClientVersions(clients, keeping=keeping and scoring is not None),
            MetricWatch.from_options(setup.stop, setup.evaluation.best) if executor is not None else None,
        )
        line = setup.fleet.server_link
        by_event = events or policy.overlapping or (line is not None and (line.download, line.upload) != (None, None))
        env = Clock(0.0)
        self.run = SimulationRun(env, RunMoment(), parts, progress, InFlight(env, line) if by_event else None)
        if account is not None:
            learning.expected = partial(expected_round, self.run, account.noise)
        if isinstance(parts.learning, Training):
            parts.learning.on_trained = lambda done, of: on_progress(
                "trained", {"round": self.run.at.round + 1, "done": done, "of": of}
            )
        self._on_divergence, self._on_round = on_divergence, on_round
        pause = 0.0 if executor is not None else UNTRAINED_SECONDS
        self._checkpoint_seconds = pause if checkpoint_seconds is None else checkpoint_seconds
        self._last_round: int | None = None
        self._coverage = DataCoverage.from_setup(setup)
        self._lost: tuple[Any, Excluded | None] = (None, None)

    @property
    def state(self) -> ServerState:
        """The server's state."""
        return self.run.state

    @property
    def is_over(self) -> bool:
        """Whether the last round has been played: of the schedule, or the one that ended the run early."""
        run = self.run
        if run.progress.early_stop is not None:
            return True
        return run.at.round in (run.parts.setup.schedule.rounds, self._last_round)

    def checkpoint(self) -> None:
        """Write a checkpoint of everything that the next round depends on, and the best weights if they are new."""
        parts, watch = self.run.parts, self.run.progress.watch
        if watch is not None and watch.unwritten is not None:
            parts.journal.keep_best(parts.setup.method.exported_tensors(watch.unwritten), watch.best)
            watch.unwritten = None
        parts.journal.checkpoint(self.run.at.round, *checkpoint_of(self.run))

    def load_data(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.  Raises RunError if it doesn't match this setup."""
        try:
            load_checkpoint(self.run, tensors, state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise RunError(
                f"the last checkpoint isn't one that this run wrote ({type(error).__name__}: {error}); remove its "
                "folder to go on from an earlier one, or start a new run"
            ) from error

    def play(self, rounds: int | None = None) -> FinalSummary:
        """Play the remaining rounds, up to the number ``rounds`` if it is given; return final metrics and totals."""
        run, progress = self.run, self.run.progress
        self._last_round = rounds
        if progress.diverged is not None and self._on_divergence == "stop":
            raise self._divergence_error()  # a resumed run
        if not self.is_over:
            process = run.env.process(self._rounds())
            try:
                run.env.run(process)
            except RuntimeError:  # SimPy's, where no event is left
                if process.triggered or run.env.peek() < inf:
                    raise
                what = "waits for an event that nothing triggers: nobody is under way, and no time is set"
                raise policy_fault(run.parts.policy, what) from None
        run.parts.learning.leave()
        watch, stopped, totals = progress.watch, progress.early_stop, progress.totals
        return FinalSummary(
            rounds=run.at.round,
            virtual_seconds=run.now,
            metrics=progress.metrics,
            totals=RoundSums(
                **{n: totals[n] for n, hint in types_of(RoundSums).items() if always(hint) or n in totals}
            ),
            stopped=UNSET if watch is None and stopped is None else stopped,
            best=UNSET if watch is None else watch.best,
        )

    def _rounds(self) -> Steps:
        run, written = self.run, monotonic()
        while not self.is_over:
            yield from self._round(run.at.round + 1)
            run.at.round += 1
            if run.air is not None:
                run.air.line_up()
            diverged = run.progress.diverged is not None and self._on_divergence == "stop"
            if diverged or self.is_over or monotonic() - written >= self._checkpoint_seconds:
                self.checkpoint()
                written = monotonic()
            if diverged:
                raise self._divergence_error()

    def _divergence_error(self) -> DivergedError:
        """The error of a run that stops because the model diverged."""
        return DivergedError(
            f"the model diverged in round {self.run.at.round}: {self.run.progress.diverged}; with "
            "training.on_divergence: continue the run goes on all the same"
        )

    def _round(self, round: int) -> Steps:
        run, setup, watch = self.run, self.run.parts.setup, self.run.progress.watch
        kinds = [kind for kind in setup.clients.kinds if setup.participates(kind, round)]
        zeros = {name: zero for each in setup.fleet.columns for name, zero in each.round_sums.items()}
        if setup.method.setting.aggregation.secure is not None:
            zeros |= dict.fromkeys(types_of(SecureSums), 0)
        sums = Counter(dict.fromkeys(SUMMED, 0) | zeros)
        tally = Tally(round, setup.schedule.stage(round), kinds, run.now, sums)
        before = self.state.tensors if setup.schedule.adapts else {}
        yield from run_server_works(run, setup.method.before(run.state, round), "before", tally)
        run.judge(round)
        outcome = "completed"  # a round in which no kind takes part is the server's alone
        if kinds:
            outcome = yield from play_round(RoundServer(run, round, tally.stage, kinds, tally))
        if outcome == "completed":
            yield from run_server_works(run, setup.method.after(run.state, round), "after", tally)
        if watch is not None:
            tally.watched, tally.stopped = {}, None
        evaluates = round == setup.schedule.rounds or round % setup.evaluation.every == 0
        if evaluates:
            yield from self._evaluate(tally)
        self._note_divergence(tally)
        final = yield from deliver_final(run, tally)
        record = self._record(tally, outcome, final)
        if self._asks_to_stop(record):
            tally.stopped = run.progress.asked_to_stop
            # the last round is evaluated on the split of last rounds
            if not evaluates or setup.evaluation.final != setup.evaluation.split:
                tally.metrics = yield from self._metrics(setup.evaluation.final, tally)
                self._score(tally)
                self._note_divergence(tally)
            record = self._record(tally, outcome, final)
        self._write(record, tally)
        if setup.schedule.adapts:
            seen = EndedRound(round, tally.metrics, _mean_losses(tally), before, self.state.tensors)
            setup.schedule.learn(seen)

    def _asks_to_stop(self, record: Round) -> bool:
        """Give ``on_round`` a copy of the record; whether it, or the account of privacy, ends a run that would go on.

        Raises RunError for an answer that is neither None nor "stop".
        """
        round, answer, account = record.round, None, self.run.parts.account
        if self._on_round is not None:
            answer = self._on_round(decode(Round, line(record), "the round's record"))
        if not (answer is None or (isinstance(answer, str) and answer == "stop")):
            raise RunError(f'on_round returned {answer!r:.80} after round {round}; it may return None, or "stop"')
        progress = self.run.progress
        if progress.early_stop is not None or round in (self.run.parts.setup.schedule.rounds, self._last_round):
            return False
        if answer is not None:
            reason, why = "on_round", "on_round asked for it"
        elif account is not None and account.ends_after(round):
            reason, why = "epsilon", f"the next would pass epsilon {account.options.epsilon:g}"
        else:
            return False
        text = f"stopped after round {round}: {why}"
        progress.asked_to_stop = EarlyStop(round=round, metric=None, value=None, reason=reason, text=text)
        return True

    def _evaluate(self, tally: Tally) -> Steps:
        """Evaluate on ``evaluation.final`` after the last round, else on ``evaluation.split``.

        With metrics to follow, the last round is evaluated on both, and what they say goes into the tally.
        """
        run, watch, splits = self.run, self.run.progress.watch, self.run.parts.setup.evaluation
        last = tally.round == run.parts.setup.schedule.rounds
        if watch is not None:
            tally.metrics = yield from self._metrics(splits.split, tally)
            watch.sees(tally.metrics, tally.round, run.state)
            tally.watched, tally.stopped = watch.values(tally.metrics), watch.stopped
            last = last or watch.stopped is not None
        if watch is None or (last and splits.final != splits.split):
            tally.metrics = yield from self._metrics(splits.final if last else splits.split, tally)
        self._score(tally)

    def _metrics(self, split: str, tally: Tally) -> Steps:
        """The metrics of the server's models on a split, or of the clients' own where the server has none."""
        if self.run.parts.setup.method.scores_own_models:
            return (yield from score_own_models(self.run, split, tally))
        return (yield from evaluate(self.run, split, tally))

    def _score(self, tally: Tally) -> None:
        """Note the metrics of the round, and score the clients that aren't scored yet."""
        run = self.run
        run.progress.metrics = tally.metrics
        if run.parts.scoring is not None and not tally.client_metrics:
            score_clients(run, run.parts.scoring, tally)

    def _note_divergence(self, tally: Tally) -> None:
        """Set ``diverged`` to what isn't finite after this round, with a warning where the round before was finite."""
        progress = self.run.progress
        before, progress.diverged = progress.diverged, None
        bad_losses = [kind for kind, losses in tally.all_losses.items() if not any(map(isfinite, losses))]
        bad_metrics = [f"{k} {n}" for k, named in tally.metrics.items() for n, value in named.items() if value is None]
        if bad := self.run.parts.learning.non_finite():
            progress.diverged = f"the tensor {bad[0]} has NaN or infinity"
        elif bad_metrics:
            progress.diverged = f"the scores behind the metric {bad_metrics[0]} have NaN or infinity"
        elif bad_losses:
            progress.diverged = f"no loss of the {bad_losses[0]} clients is finite"
        if progress.diverged is not None and before is None and self._on_divergence == "continue":
            text = f"the model diverged in round {tally.round}: {progress.diverged}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _record(self, tally: Tally, outcome: str, final_delivery_bytes: int) -> Round:
        run, parts, setup, kinds = self.run, self.run.parts, self.run.parts.setup, tally.kinds
        finished, late = tally.outcomes["finished"], tally.outcomes["late"]
        added: dict[str, Any] = dict(tally.sums)
        if parts.tier is not None:
            added["last_relay"], added["last_sum_virtual_seconds"] = tally.last_relay or (None, None)
        return Round(
            round=tally.round,
            stage=tally.stage.index,
            outcome=outcome,
            started_virtual_seconds=tally.started,
            virtual_seconds=run.now - tally.started,
            finished_virtual_seconds=run.now,
            clients={kind: len(setup.of_kind(kind)) for kind in kinds},
            eligible={kind: len(parts.roster.able(kind)) for kind in kinds},
            samples={kind: setup.samples_of_kind[kind] for kind in kinds},
            eligible_samples={kind: parts.roster.able_samples(kind) for kind in kinds},
            excluded=self._excluded_data(kinds),
            selected=tally.selected,
            unavailable=tally.unavailable,
            under_way=run.under_way(),
            finished=finished,
            late=late,
            failed=sum(tally.outcomes.values()) - finished - late,
            outcomes=dict(tally.outcomes),
            rejected=sorted(tally.rejected),
            rejections=dict(tally.rejections),
            **added,
            final_delivery_bytes=final_delivery_bytes,
            server_seconds=sum(work.seconds for work in tally.server),
            server_works=list(tally.server),
            lr=setup.rate_of(tally.round) if setup.method.setting.training.lr_schedule.varies else UNSET,
            losses=_mean_losses(tally),
            metrics=tally.metrics,
            scored_part=tally.scored_part,
            watched=tally.watched,
            stopped=tally.stopped,
            diverged=run.progress.diverged is not None,
            client_metrics=UNSET if parts.scoring is None else tally.client_metrics,
            privacy=UNSET if parts.account is None else _privacy_record(parts.account, tally.round),
        )

    def _write(self, record: Round, tally: Tally) -> None:
        run, parts, progress, round = self.run, self.run.parts, self.run.progress, record.round
        added = {name: value for name in types_of(RoundSums) if (value := getattr(record, name)) is not UNSET}
        progress.totals.update(added)
        parts.journal.append_lines(FlightRecord, tally.lines)
        parts.journal.append(*tally.scored)
        run.record_scratch(round)
        parts.journal.append(*tally.hosts)
        parts.journal.append(record)  # last, because a round that has a record counts as played: tune doesn't repeat it
        if tally.learnt:
            # of several updates of one client the last counts
            last = {update[0]: update for update in tally.learnt}
            clients, losses, seconds, counts = zip(*last.values(), strict=True)
            parts.selection.learn(
                np.array(clients, np.int64), np.array(losses, float), np.array(seconds), np.array(counts), round
            )
        parts.on_progress("record", record.to_data())

    def _excluded_data(self, kinds: Sequence[str]) -> Excluded:
        """Samples, classes and modalities that are lost with the ineligible clients of these kinds."""
        roster = self.run.parts.roster
        key, known = self._lost
        now = (roster.changes, tuple(kinds))
        if known is None or key != now:
            members = np.zeros(len(roster.eligible), bool)
            for kind in kinds:
                members[self.run.parts.setup.of_kind(kind)] = True
            lost = self._coverage.measure_coverage(members, members & roster.eligible)
            known = Excluded(
                samples=lost.excluded_samples,
                lost_classes=lost.lost_classes,
                lost_modalities=lost.lost_modalities,
                modality_samples_share=lost.modality_samples_share,
            )
            self._lost = now, known
        return known


def _mean_losses(tally: Tally) -> dict[str, float | None]:
    """Mean loss of each kind over the samples of its accepted updates; None where no loss of the kind is finite.

    They are added up in the order in which the updates landed, on which the last bit depends.
    """
    means: dict[str, float | None] = {
        kind: sum(loss * samples for loss, samples in losses) / sum(samples for _, samples in losses)
        for kind, losses in tally.losses.items()
    }
    return means | {kind: None for kind, losses in tally.all_losses.items() if not any(map(isfinite, losses))}


def _privacy_record(account: PrivacyAccount, rounds: int) -> PrivacySpent:
    """What so many rounds have spent."""
    options = account.options
    assert options.delta is not None
    return PrivacySpent(
        epsilon=account.epsilon(rounds),
        delta=options.delta,
        noise=account.noise,
        neighbours=account.neighbours,
        accountant=options.accountant,
    )


def _freezes(setup: Setup) -> bool:
    """Whether something may be frozen: if everything trains in every round, everything is sent in every round."""
    kinds, stages = setup.method.setting.kinds.values(), setup.schedule.offered
    active = (stage.is_active(name) for stage in stages for kind in kinds for name in kind.parameters())
    return len(setup.schedule.stages) > 1 or not all(active) or any(kind.fixed_parameters() for kind in kinds)


def _learning(
    setup: Setup, planner: Planner, executor: Executor | None, journal: RecordWriter, updates_memory: float
) -> Learning:
    if executor is None:
        return NoTraining(setup, planner)
    kept, folder = KeptValues(journal.kept_folder), journal.kept_folder.parent
    return Training(setup, planner, executor, setup.method.at_start(setup.seed), kept, folder, updates_memory)
