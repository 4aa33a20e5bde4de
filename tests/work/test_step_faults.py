"""A step that needs values or a field that it didn't ask for: one line with the step, the place and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import edgefl
from edgefl import registry
from edgefl.cost.predict import predict
from edgefl.errors import MethodError
from edgefl.registry.registered import PARTS
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Step, Work


class Faulty(Step):
    """Classifies, after it did what ``args.do`` says."""

    def loss(self, ctx: Any, batch: Any, pattern: str, pass_: Any) -> Any:
        logits = ctx.client_model.logits(pattern, batch[pattern])
        FAULTS[pass_.args["do"]](logits, batch)
        return logits.square().mean()


FAULTS: dict[str, Any] = {
    "item": lambda logits, batch: logits.sum().item(),
    "branch": lambda logits, batch: 1 if logits.sum() > 0 else 0,
    "mask": lambda logits, batch: logits[logits > 0],
    "index": lambda logits, batch: batch["index"],
    "other": lambda logits, batch: {}["rank"],
}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("step", "faulty")(Faulty)
    yield
    PARTS.clear()
    registry.forget()


def image_work(tiny: Any) -> tuple[Work, Any]:
    setup = compose(load(tiny()), trains=False)
    return setup.method.work("image", 1), setup.clients.client(0)


def predicted(tiny: Any, **args: Any) -> None:
    work, client = image_work(tiny)
    passes = tuple(replace(each, step="faulty", args=args) for each in work.passes)
    predict(replace(work, passes=passes), client)


@pytest.mark.parametrize(
    ("do", "operator"), [("item", "_local_scalar_dense"), ("branch", "_local_scalar_dense"), ("mask", "nonzero")]
)
def test_an_operator_that_needs_values_is_named_with_its_line(tiny: Any, do: str, operator: str) -> None:
    with pytest.raises(
        MethodError, match=rf"'faulty'.*test_step_faults\.py:\d+: the result of aten\.{operator}"
    ) as error:
        predicted(tiny, do=do)
    line = FAULTS[do].__code__.co_firstlineno
    assert f"test_step_faults.py:{line}: " in str(error.value) and "torch.where" in str(error.value)


def test_a_field_that_the_pass_did_not_ask_for_comes_with_what_to_write(tiny: Any) -> None:
    remedy = (
        "its batch has no field 'index'; it has image, label: ask for it in the pass, args={'fields': ['image', 'label'"
    )
    with pytest.raises(MethodError, match=re.escape(remedy)):
        predicted(tiny, do="index")
    predicted(tiny, do="index", fields=["image", "label", "index"])


def test_another_key_error_is_left_as_it_is(tiny: Any) -> None:
    with pytest.raises(KeyError, match="rank"):
        predicted(tiny, do="other")


def test_a_shipped_step_says_which_argument_or_copy_it_lacks(tiny: Any) -> None:
    work, client = image_work(tiny)
    with pytest.raises(MethodError, match="'proximal' around .*: its pass has no argument 'proximal'; it has mu$"):
        predict(work.around("proximal", mu=0.1), client)
    pulled = work.around("proximal", proximal=0.1)
    with pytest.raises(MethodError, match=r"no copy of 'image\.[\w.]+' .*: give the work reference=work\.trainable$"):
        predict(pulled, client)
    predict(replace(pulled, reference=work.trainable), client)
