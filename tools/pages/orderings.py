"""The tables of the pages about orderings and open questions, from the values of every seed that are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from edgefl.commands.compare.answer import OrderingClaim
from edgefl.commands.compare.orderings import NOT_SHOWN, REVERSED, SHOWN, figure_of
from edgefl.commands.compare.table import claim_cells
from edgefl.drawing.text_tables import plain_markdown
from tools.pages.markdown import table
from tools.paper_tables.orderings import StudyValues, recorded
from tools.paper_tables.studies import CLAIMED, OPEN, Study

HEAD = ("claimed", "metric", "gap", "95 % interval", "could be shown", "ahead", "seeds for 80 %")


def ordering_blocks() -> dict[str, str]:
    """Those of the page about claimed orderings: by verdict, then each study's means."""
    known = recorded()
    judged = [study for study in CLAIMED if study.name in known and len(known[study.name].seeds) > 1]
    found = [(study, claim) for study in judged for claim in known[study.name].claims]
    blocks = {"counts": _counts([claim for _, claim in found])}
    for name, word in (("shown", SHOWN), ("reversed", REVERSED), ("not-shown", NOT_SHOWN)):
        rows = [(study.where, *_cells(claim)) for study, claim in found if claim.verdict == word]
        blocks[name] = table(("where", *HEAD), rows) if rows else "None."
    return blocks | {study.name: _means(study, known.get(study.name)) for study in CLAIMED}


def open_question_blocks() -> dict[str, str]:
    """Those of the page about open questions: each question's means and verdicts."""
    known = recorded()
    blocks = {}
    for study in OPEN:
        there = known.get(study.name)
        rows = [(*_cells(claim), claim.verdict) for claim in there.claims] if there else []
        verdicts = ["", table((*HEAD, "verdict"), rows)] if rows else []
        blocks[study.name] = "\n".join([_means(study, there), *verdicts])
    return blocks


def _cells(claim: OrderingClaim) -> tuple[str, ...]:
    gap, interval, detectable, ahead, needed, _ = claim_cells(claim)
    return (f"{plain_markdown(claim.worse)} < {plain_markdown(claim.better)}", short(claim.metric), gap, interval,
            detectable, ahead, needed)  # fmt: skip


def short(metric: str) -> str:
    """A metric's name without the kind of pairs: ``r@10``."""
    return metric.removeprefix("image-text.")


def _counts(claims: Sequence[OrderingClaim]) -> str:
    of = Counter(claim.verdict for claim in claims)
    return (
        f"Claims: {len(claims)}, of which {of[SHOWN]} are {SHOWN}, {of[REVERSED]} are {REVERSED}, and {of[NOT_SHOWN]} "
        f"{NOT_SHOWN}. If nothing differed at all, about {0.05 * len(claims):.1f} would be beyond chance."
    )


def _means(study: Study, known: StudyValues | None) -> str:
    """Mean and deviation of each row over the seeds."""
    if known is None:
        return "Not run yet."
    rows = [
        (plain_markdown(row), *(_with_deviation(of[metric]) for metric in study.metrics))
        for row, of in known.values.items()
    ]
    seeds = ", ".join(map(str, known.seeds))
    over = f"Mean ± standard deviation over seed{'s' if len(known.seeds) > 1 else ''} {seeds}, test split."
    return f"{over}\n\n{table(('row', *map(short, study.metrics)), rows)}"


def _with_deviation(values: Sequence[float]) -> str:
    figure = figure_of(values)
    return f"{figure.mean:.3f} ± {figure.deviation:.3f}"
