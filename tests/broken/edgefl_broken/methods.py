"""Methods that are broken, each in one place."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgefl.methods import Method, ServerState, Update
from edgefl.work import Item, Payload, Work

NOTHING = None
NUMBER = 7


class Sound(Method):
    """The one that works."""

    summary = "nothing is wrong with it"


class BadOptions(Method):
    Options = 3  # type: ignore[assignment]


class RaisesInInit(Method):
    def __init__(self, options: Any, setting: Any):
        super().__init__(options, setting)
        raise KeyError("rank")


class LeavesInInit(Method):
    def __init__(self, options: Any, setting: Any):
        sys.exit(0)


class RaisesInWork(Method):
    def work(self, kind: str, round: int) -> Work:
        return {}[kind]


class LeavesInWork(Method):
    def work(self, kind: str, round: int) -> Work:
        raise SystemExit("bye")


class NoWork(Method):
    def work(self, kind: str, round: int) -> Work:
        super().work(kind, round)  # without a return


class RaisesInInitial(Method):
    def initial(self, seed: int) -> ServerState:
        raise LookupError("no start")


class RaisesInAggregate(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        raise ZeroDivisionError("two\nlines")


class LeavesInAggregate(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        sys.exit()


class NoState(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        super().aggregate(state, updates)  # without a return


class WrongShape(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        return new.with_tensors({a: t[:1] for a, t in new.tensors.items() if a.endswith("head.bias")})


class Stop(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


class StopsInWork(Method):
    def work(self, kind: str, round: int) -> Work:
        raise Stop("enough")


class MuteInWork(Method):
    def work(self, kind: str, round: int) -> Work:
        raise Mute


class StopsInAggregate(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        raise Stop("enough\x1b[31m")


class MuteInAggregate(Method):
    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        raise Mute


class HangsInWork(Method):
    def work(self, kind: str, round: int) -> Work:
        print("hanging", flush=True)
        while True:
            time.sleep(0.01)


class _Stepped(Method):
    step = ""

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        return replace(work, passes=tuple(replace(p, step=self.step) for p in work.passes))


class RaisesInStep(_Stepped):
    step = "raises"


class LeavesInStep(_Stepped):
    step = "leaves"


class StopsWithData(_Stepped):
    step = "stops-with-data"


class MuteWithData(_Stepped):
    step = "mute-with-data"


class LeavesWithData(_Stepped):
    step = "leaves-with-data"


class VectorLoss(_Stepped):
    step = "vector"


class Caching(_Stepped):
    step = "caching"


class Counting(_Stepped):
    step = "counting"


class WrongOutput(_Stepped):
    step = "short-output"

    def work(self, kind: str, round: int) -> Work:
        work = super().work(kind, round)
        table = Payload("table", (Item("table", (4,), "float32", "table/t"),))
        return replace(work, up=(*work.up, table))


class Looking(Method):
    """Looks at values in ``aggregate``, which has shapes alone without training."""

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        sum(float(value.abs().sum()) for update in updates for _, value in update.uploaded_tensors())
        return new


class Choosy(Method):
    """Changes another tensor without training than with it."""

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        new = super().aggregate(state, updates)
        if any(value.is_meta for value in new.tensors.values()):
            return state
        return new
