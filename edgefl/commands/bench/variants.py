"""The variants of a suite: which can be run, and with which settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgefl import registry
from edgefl.cells.needs import check
from edgefl.commands.bench.admissions import content_of
from edgefl.commands.bench.priced_fleets import run_folder
from edgefl.commands.tune.answer import Tuning
from edgefl.commands.tune.trial_run import Run
from edgefl.commands.tune.tune_scenario import metric_of, tune_scenario
from edgefl.errors import DivergedError, EdgeflError, RunError, ScenarioError
from edgefl.runs.progress import OnProgress, messages
from edgefl.scenario.problems import raise_all, reason
from edgefl.scenario.search_space import parse_search_space, with_settings
from edgefl.scenario.suite import Suite, Variant


def check_variants(suite: Suite, on_progress: OnProgress) -> tuple[list[Variant], str]:
    """The variants, those that can't be run with the reason, and the metric.  Raises ScenarioError if none can be."""
    variants, errors = list[Variant](), list[EdgeflError]()
    metric, on_message = suite.options.metric, messages(on_progress)
    for variant in suite.variants:
        if variant.refused is not None:
            errors.append(suite.document.error(("variants", variant.name), variant.refused))
            variants.append(variant)
            continue
        try:
            with registry.named_faults():
                scenario = replace(variant.scenario, seed=suite.seeds[0])
                for fields in suite.options.conditions.values() or [{}]:
                    setup = check(suite.with_fields(scenario, "conditions", fields), on_message)
        except EdgeflError as error:
            if not _is_scenario_error(error):
                raise
            errors.append(error)
            variants.append(replace(variant, refused=reason(error)))
            continue
        variants.append(variant)
        try:
            followed = scenario.stop.metric or scenario.evaluation.best
            where = "metric: KIND.NAME, or in a scenario evaluation.best:"
            metric = metric_of(setup, scenario.evaluation.final, metric, followed, where)
        except ScenarioError as error:
            raise suite.document.error(("metric",), f"{error.message} (variant {variant.name})") from error
    if len(errors) == len(variants):
        raise_all([error for error in errors if isinstance(error, ScenarioError)])
        raise errors[0]
    assert metric is not None
    return variants, metric


def _is_scenario_error(error: EdgeflError) -> bool:
    """Whether an error is about the scenario of one variant, so that the others can go on."""
    return error.exit_code == EdgeflError.exit_code and not isinstance(error, RunError)


def tune_variants(
    suite: Suite, variants: Sequence[Variant], metric: str, folder: Path, run: Run, on_progress: OnProgress
) -> tuple[list[Variant], dict[str, Tuning]]:
    """The variants with the settings that scored best on validation, by equally many trials, and how each was found.

    The variants as they are if the suite tunes nothing.
    """
    found, tunings = list[Variant](), dict[str, Tuning]()
    options = suite.options.tune
    if options is None:
        return list(variants), {}
    for variant in variants:
        if variant.refused is not None:
            found.append(variant)
            continue
        scenario = variant.scenario
        space = parse_search_space(scenario, options.search)
        place = folder / run_folder(variant.name, content_of(scenario, None))
        place.mkdir(parents=True, exist_ok=True)
        on_progress("prepare", {"what": f"{variant.name}: {options.trials} trials"})
        try:
            tuning = tune_scenario(
                scenario, space, options.trials, place, metric=metric, seeds=options.seeds, run=run,
                on_progress=on_progress,
            )  # fmt: skip
        except (ScenarioError, DivergedError) as error:
            found.append(replace(variant, refused=f"tuning: {reason(error)}"))
            continue
        tunings[variant.name] = tuning
        found.append(replace(variant, scenario=with_settings(scenario, space, tuning.best.settings)))
    if not tunings:
        raise suite.document.error(("tune",), f"no variant can be tuned: {found[0].name}: {found[0].refused}")
    return found, tunings
