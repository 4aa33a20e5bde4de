"""``edgefl fit`` as it is typed, and ``edgefl.fit`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, command, option, silent
from edgefl.console.options import OneKind, Overrides, PricingJobs, ScenarioFile

if TYPE_CHECKING:
    from edgefl.commands.fit.answer import Fit

MOST, SOLUTIONS = 200, 5
"""Works that are predicted at most for a kind, and solutions after which the search ends.

A choice: 200 works of a model of 24 blocks take 91 s on two cores (docs/evidence/speed.md).
"""


class Unfinished(KeyboardInterrupt):
    """The search was interrupted; ``answer`` is what it had found by then."""

    def __init__(self, answer: Fit):
        super().__init__()
        self.answer = answer


@command(
    "edgefl fit mine.yaml --device raspberry-pi-4-2gb",
    "edgefl fit mine.yaml --device phone-mid --memory 1GiB --answers 1",
    answer="edgefl.commands.fit.answer:Fit", forms={"table": "edgefl.commands.fit.table:print_fit"},
    interrupted="what was found is incomplete; the same command goes on, since prices are kept",
)  # fmt: skip
def fit(
    scenario: ScenarioFile,
    overrides: Overrides = (),
    *,
    device: Annotated[str, option("Device that should take part: a known name or a profile file.", "NAME")],
    link: Annotated[
        str | None,
        option("Link of the device; default: the fleet's most common, of equally common ones the slowest.", "NAME"),
    ] = None,
    kind: OneKind = None,
    memory: Annotated[
        float | str | None,
        option(
            "Memory budget of a round's peak, of tensors and kernels' scratch: 64MiB; default: the scenario's. Never "
            "more than the device has, unless the scenario's within_device is false.",
            "BYTES",
        ),
    ] = None,
    flops: Annotated[
        float | str | None, option("FLOPs budget a round: 1TFLOP; default: the scenario's.", "FLOPS")
    ] = None,
    bytes: Annotated[
        float | str | None, option("Traffic budget a round, down and up: 20MB; default: the scenario's.", "BYTES")
    ] = None,
    seconds: Annotated[
        float | str | None, option("Time budget a round: 60s; default: the scenario's and its deadline.", "TIME")
    ] = None,
    joules: Annotated[
        float | str | None, option("Energy budget a round: 500J; default: the scenario's.", "ENERGY")
    ] = None,
    power: Annotated[
        float | str | None, option("Highest power of a round: 15W; default: the scenario's.", "WATTS")
    ] = None,
    any_stage: Annotated[bool, option("The device must fit in some stage of the schedule, not in all.")] = False,
    epochs: Annotated[bool, option("Fewer local epochs are allowed, too.")] = False,
    answers: Annotated[int, option("Stop after N solutions for a kind; 0 finds all.", "N", min=0)] = SOLUTIONS,
    most: Annotated[int, option("At most N predicted works per kind.", "N", min=1)] = MOST,
    jobs: PricingJobs = None,
    on_progress: OnProgress = silent,
) -> Fit:
    """The smallest changes that let a device take part.

    The exit code is 1 if there are none.  Each kind of client is taken by itself.  Changes are tried in the order of
    how much they change training: first those that compute the same updates differently, then numerics, payloads, the
    schedule, the batch and, with ``epochs``, the local epochs.  What the scenario compares is ignored.

    Returns:
        A record: the ``budgets`` with where each comes from, and by kind ``fits``, ``as_it_stands``, ``solutions``
        (the smallest change first, each with its ``sets`` for ``--set``) and, where nothing fits, what is ``nearest``.

    Raises:
        ScenarioError: The scenario can't be run, ``most`` is below 1, or ``answers`` below 0.
        UnknownName: The device, link or kind is unknown.
        UnitError: A budget can't be read, or is 0.
        Unfinished: A KeyboardInterrupt came during the search; it has the ``answer`` so far.

    Examples:
        A client of ``runs/small`` needs 743 KiB:

        >>> import edgefl
        >>> fit = edgefl.fit("runs/small/scenario.yaml", device="raspberry-pi-4-4gb", memory="600kB", answers=1, jobs=1)
        >>> fit.kinds["image"].fits
        False
        >>> fit.kinds["image"].solutions[0].sets
        ['training.checkpointing=true']
    """
    from dataclasses import replace

    from edgefl.cells.cells import check_jobs
    from edgefl.cells.pricing import beside
    from edgefl.commands.fit.allowances import allowances_of
    from edgefl.commands.fit.answer import InterruptedFit, KindFit
    from edgefl.commands.fit.bounds import FitQuestion
    from edgefl.commands.fit.one_kind import KindSearch, fit_of
    from edgefl.devices import load_device, load_link
    from edgefl.devices.fleet import with_runtime_and_pace
    from edgefl.errors import ScenarioError, UnknownName
    from edgefl.planning.eligibility import DEVICE
    from edgefl.runs.progress import messages
    from edgefl.setup.compose import commonest_link, compose, predictor_of, scenario_of

    if jobs is not None:
        check_jobs(jobs)
    whole = scenario_of(scenario, overrides)
    fleet = whole.fleet
    target_device = with_runtime_and_pace(load_device(device), fleet.runtime, fleet.pace_seed(whole.seed))
    given = {"memory": memory, "flops": flops, "bytes": bytes, "seconds": seconds, "joules": joules, "power": power}
    for name, number, least in (("most", most, 1), ("answers", answers, 0)):
        if number < least:
            raise ScenarioError(f"{name} must be at least {least}, not {number}")
    setup = compose(whole, messages(on_progress), trains=False)
    if keys := whole.training.devices(setup.clients.kinds):
        message = f"fit takes one device: set training.by={{}}, and in training itself what {keys[0]} has"
        raise whole.error(("training", "by"), message)
    if kind is not None and kind not in setup.clients.kinds:
        raise UnknownName("client kind", kind, setup.clients.kinds)
    over = load_link(link) if link else commonest_link(setup.fleet)
    allowances = allowances_of(whole, target_device, over, given)
    question = FitQuestion(
        whole, setup, predictor_of(whole), target_device, over,
        {name: each.allowed for name, each in allowances.items()}, allowances["memory"].limit == DEVICE,
        any_stage=any_stage, epochs=epochs, most=most, first=answers or None,
    )  # fmt: skip
    found = dict[str, KindFit]()
    with beside([question.predictor], jobs) as pricing:
        for name in setup.clients.kinds if kind is None else [kind]:
            hunt = KindSearch(replace(question, pricing=pricing), name, on_progress)
            try:
                found[name] = hunt.find_fit()
            except KeyboardInterrupt as error:
                so_far = fit_of(question, allowances, {**found, name: hunt.so_far})
                raise Unfinished(InterruptedFit(**vars(so_far))) from error
    return fit_of(question, allowances, found)
