"""What a method's functions may return: a mistake is named where it was made, and what means the same is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

import edgefl
from edgefl import registry
from edgefl.errors import MethodError
from edgefl.methods.checked_answers import check_answers
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.state import ServerState
from edgefl.registry.registered import PARTS
from edgefl.work import Work

Tiny = Callable[..., dict[str, Any]]


class Told(FedAvg):
    """FedAvg that says what the server changes in a form of its own."""

    class Options(FedAvg.Options):
        name: Literal["told"] = "told"  # type: ignore[assignment]
        form: Literal["set", "tuple", "list", "text", "None", "numbers"] = "set"

    def changed_addresses(self, work: Work) -> Any:
        addresses = [item.source for payload in work.up for item in payload.items]
        forms = {"set": set(addresses), "tuple": tuple(addresses), "list": addresses, "text": addresses[0]}
        return {**forms, "None": None, "numbers": [3]}[self.options.form]


@pytest.fixture(autouse=True)
def _told() -> Iterator[None]:
    edgefl.register("method", "told")(Told)
    yield
    PARTS.clear()
    registry.forget()


@pytest.mark.parametrize("form", ["tuple", "list"])
def test_the_addresses_that_change_may_be_any_collection(tiny: Tiny, form: str) -> None:
    told = edgefl.profile(tiny(method={"name": "told", "form": form}))
    assert told["totals"] == edgefl.profile(tiny(method={"name": "told", "form": "set"}))["totals"]


@pytest.mark.parametrize(
    ("form", "said"),
    [("text", "an object of type str"), ("None", "None"), ("numbers", "a collection with an object of type int")],
)
def test_what_holds_no_addresses_is_refused_with_the_function(tiny: Tiny, form: str, said: str) -> None:
    with pytest.raises(
        MethodError, match=rf"Told\.changed_addresses\(\) \(.*test_answers\.py:\d+\) returned {said}, not"
    ):
        edgefl.profile(tiny(method={"name": "told", "form": form}))


def test_a_state_holds_tensors_alone() -> None:
    class Counting:
        def aggregate(self, state: ServerState) -> ServerState:
            return ServerState({"a": 1}, {"a": 0})  # type: ignore[dict-item]

    check_answers(Counting)
    with pytest.raises(MethodError, match=r"returned an object of type int at 'a', not a tensor$"):
        Counting().aggregate(ServerState({}, {}))
