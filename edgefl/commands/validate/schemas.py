"""The records that have a JSON Schema to print: a name for each file of a run's folder and for each answer."""

from __future__ import annotations

from edgefl.commands.analyse.answer import Analysis
from edgefl.commands.bench.answer import BenchAnswer
from edgefl.commands.compare.answer import ComparedRuns
from edgefl.commands.explain.answer import Explanation, Exported, TraceAnswer
from edgefl.commands.fit.answer import Fit
from edgefl.commands.parts.answer import Parts
from edgefl.commands.profile.answer import ComparedProfiles, CostDifference, Profile
from edgefl.commands.run.verified import Verified
from edgefl.commands.tune.answer import Tuning
from edgefl.commands.validate.answer import ValidScenario
from edgefl.drawing.sliders.page_data import Explored, ExploredDevices
from edgefl.records.clients import FlightRecord, ScoredClient
from edgefl.records.devices import Calibration, DeviceCheck, Library
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.emulated import Emulation
from edgefl.records.host import HostWork, Scratch
from edgefl.records.papers import Papers
from edgefl.records.published import PublishedAgreement
from edgefl.records.record import Record
from edgefl.records.rounds import Round
from edgefl.records.run import Comparison, Environment, EvaluationFacts, FinalSummary
from edgefl.records.summary import Summary

RECORDS: dict[str, type[Record]] = {
    "rounds": Round, "clients": FlightRecord, "scored": ScoredClient, "eligibility": VerdictRecord, "scratch": Scratch,
    "host": HostWork, "result": FinalSummary, "environment": Environment, "evaluation": EvaluationFacts,
    "compare.json": Comparison, "run": Summary, "verify": Verified, "explain": Explanation, "trace": TraceAnswer,
    "export": Exported, "emulate": Emulation, "profile": Profile,
    "profile --compare": ComparedProfiles, "cost-diff": CostDifference, "devices check": DeviceCheck,
    "devices list": Library, "devices validate": PublishedAgreement, "calibrate": Calibration, "parts": Parts,
    "compare": ComparedRuns, "explore": Explored, "explore --devices": ExploredDevices, "fit": Fit,
    "tune": Tuning, "bench": BenchAnswer, "analyse": Analysis, "validate": ValidScenario,
    "papers": Papers,
}  # fmt: skip
"""Each record by the name of its table, file or command; not those with a list whose rows are of two classes."""
