"""Whether a run's evaluation has the metrics that ``stop`` and ``evaluation.best`` follow."""

from __future__ import annotations

from edgefl.cost import metric_names
from edgefl.errors import suggestion
from edgefl.planning import Setup
from edgefl.scenario import Scenario


def check_followed(scenario: Scenario, setup: Setup) -> None:
    """Raise ScenarioError, with file and line, for a metric that the evaluation of its kind doesn't write."""
    followed = (("stop", "metric"), scenario.stop.metric), (("evaluation", "best"), scenario.evaluation.best)
    if all(metric is None for _, metric in followed):
        return
    works = setup.evaluations(setup.evaluation.split, setup.schedule.stage(1))
    source = setup.clients.server()
    names = [(kind, name) for work, kinds in works for name in metric_names(work, source) for kind in kinds]
    for path, metric in followed:
        kind, _, name = (metric or "").partition(".")
        if metric is not None and (kind, name) not in names:
            there = [each for of, each in names if of == kind]
            raise scenario.error(path, f"the evaluation of {kind} has no {name!r}{suggestion(name, there)}")
