"""``edgefl validate`` as it is typed, and ``edgefl.validate`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgefl.console.derived import OnProgress, argument, command, option, silent
from edgefl.console.options import Given, Overrides, Place, check_scenario_exists, shipped_and_files

if TYPE_CHECKING:
    from edgefl.commands.validate.answer import JsonSchema, ValidScenario


def _check_scenario_exists(context: typer.Context, given: Any) -> Any:
    """Raise ScenarioError for a scenario that isn't there, before torch is imported; a record isn't a scenario."""
    return given if context.params.get("schema") else check_scenario_exists(context, given)


@command(
    "edgefl validate mine.yaml", "edgefl validate quickstart --as yaml --set round.deadline=30s",
    "edgefl validate --schema rounds",
    answer="edgefl.commands.validate.answer:ValidScenario",
    forms={"table": "edgefl.commands.validate.table:print_validation",
           "yaml": "edgefl.commands.validate.table:as_yaml"},
)  # fmt: skip
def validate(
    scenario: Annotated[
        Given | None,
        argument(
            "A scenario file, or the name of a shipped one: quickstart. With --schema scenario, the default, or the "
            "record of a run or of an answer: rounds, profile.",
            "SCENARIO",
            autocompletion=shipped_and_files,
            callback=_check_scenario_exists,
        ),
    ] = None,
    overrides: Overrides = (),
    *,
    schema: Annotated[
        bool, option("Print the JSON Schema of scenarios, with the parts of plug-ins, or of a record.", is_eager=True)
    ] = False,
    out: Annotated[Place | None, option("Write the schema to a file.", "FILE", "--out", "-o")] = None,
    on_progress: OnProgress = silent,
) -> ValidScenario | JsonSchema:
    """Check a scenario, or print its JSON Schema.

    A scenario is checked with every combination that it compares.  The check is the one with which ``edgefl.run``
    begins: data are opened, fleets drawn, works described, files of weights compared with the towers, and a step of
    each kind's work is priced on tensors without data.  Nothing is trained and no run is written.

    Returns:
        ``scenario`` (its name), ``seed``, ``combinations`` and ``resolved``, the scenario with every default written
        out, which ``--as yaml`` prints.  A combination has its ``label``, ``method`` and ``schedule``, the ``rounds``
        in all and by stage, and counts of ``clients``, private ``samples``, ``parameters`` (by kind), ``devices``,
        ``links`` (clients by name) and, where samples lack modalities, ``lacking`` (samples by kind and pattern).
        With ``schema`` instead ``of`` (scenario, or the record), the ``schema`` and its ``file``.

    Raises:
        ScenarioError: The scenario can't be run, or none is named; also DataError, DeviceError, MethodError, UnitError.
        UnknownName: There is no such part or record.
        RunError: The file of the schema can't be written.

    Examples:
        >>> import edgefl
        >>> answer = edgefl.validate("quickstart", ["fleet.budgets.memory=16MiB"])
        >>> [(each.label, each.rounds) for each in answer.combinations]
        [('end-to-end', 12), ('progressive', 12), ('layerwise', 12)]

        An error names the nearest key:

        >>> edgefl.validate("quickstart", ["training.lrr=0.1"])
        Traceback (most recent call last):
        edgefl.errors.ScenarioError: --set training.lrr=0.1: training.lrr: unknown key 'lrr'; did you mean 'lr'?
    """
    import json

    from edgefl.commands.validate.answer import JsonSchema, ValidScenario
    from edgefl.errors import ScenarioError
    from edgefl.runs.progress import messages

    if schema:
        from edgefl.commands.validate.schemas import schema_text  # which imports all records

        of = str(scenario or "scenario")
        text = schema_text(of)
        if out is not None:
            from pathlib import Path

            from edgefl.runs.durable import write_output

            write_output(Path(out), text.encode())
        return JsonSchema(of=of, file=None if out is None else str(out), schema=json.loads(text))
    if scenario is None or out is not None:
        lacking = "a scenario is a file, the name of a shipped one, or a dictionary: name one, or add --schema"
        raise ScenarioError(lacking if scenario is None else "--out is for --schema alone")

    from edgefl.cells.needs import check
    from edgefl.commands.validate.combination import valid_combination
    from edgefl.setup.compose import check_sections, scenario_of

    whole = scenario_of(scenario, overrides)
    combinations = whole.combinations()
    check_sections([combination for _, combination in combinations])
    return ValidScenario(
        scenario=whole.name,
        seed=whole.seed,
        combinations=[
            valid_combination(label, combination, check(combination, messages(on_progress), brief=True))
            for label, combination in combinations
        ],
        resolved=whole.to_data(),
    )
