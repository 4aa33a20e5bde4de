"""The records that have a JSON Schema to print: a name for each file of a run's folder and for each answer."""

from __future__ import annotations

from edgefl.commands.analyse.answer import Analysis, ShardOfAnalysis
from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.compare.answer import ComparedRuns
from edgefl.commands.explain.answer import Explanation
from edgefl.commands.export.answer import Exported
from edgefl.commands.fit.answer import Fit
from edgefl.commands.parts.answer import Parts
from edgefl.commands.profile.answer import Profile
from edgefl.commands.report.answer import RunReport
from edgefl.commands.run.answer import RunAnswer
from edgefl.commands.run.verified import Verified
from edgefl.commands.sweep.answer import Sweep
from edgefl.commands.tune.answer import Tuning
from edgefl.commands.validate.answer import ValidScenario
from edgefl.drawing.sliders.page_data import Explored, ExploredDevices
from edgefl.records.answer import Answer
from edgefl.records.clients import FlightRecord, ScoredClient
from edgefl.records.devices import Calibration, DeviceCheck, DeviceChecks, Library
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.host import HostWork, Scratch
from edgefl.records.record import Record
from edgefl.records.rounds import Round
from edgefl.records.run import Comparison, Environment, EvaluationFacts, FinalSummary

FILES: dict[str, type[Record]] = {
    "rounds": Round, "clients": FlightRecord, "scored": ScoredClient, "eligibility": VerdictRecord, "scratch": Scratch,
    "host": HostWork, "result": FinalSummary, "environment": Environment, "evaluation": EvaluationFacts,
    "compare.json": Comparison,
}  # fmt: skip
"""The record of each table and file of a run's folder."""

ANSWERS: dict[str, type[Answer]] = {
    "profile": Profile, "devices check": DeviceCheck, "devices check A B": DeviceChecks,
    "devices list": Library, "calibrate": Calibration, "parts": Parts,
    "compare": ComparedRuns, "sweep": Sweep, "explore": Explored, "explore --devices": ExploredDevices, "fit": Fit,
    "tune": Tuning, "bench": BenchAnswer, "analyse": Analysis, "analyse --shard": ShardOfAnalysis,
    "validate": ValidScenario, "run": RunAnswer, "verify": Verified, "explain": Explanation,
    "export": Exported, "report": RunReport,
}  # fmt: skip
"""What a command prints with ``--json``, in the order of the page that tells it.

Not the answer of ``doctor``, which is no record: it must come where their libraries are broken.
"""

RECORDS: dict[str, type[Record]] = {**FILES, **ANSWERS}
