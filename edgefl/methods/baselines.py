"""Baselines without a federation: all data at one place, and every client by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from edgefl.errors import MethodError
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Setting
from edgefl.methods.state import ServerState
from edgefl.work import Work
from edgefl.work.description import POOLED


class Central(Method):
    """The server trains each kind's model on the samples of all of its clients; no client does anything."""

    class Options(Method.Options):
        """``method: central``."""

        name: Literal["central"] = "central"

    summary = "the server trains on the samples of all clients: a baseline, not federated"

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        if lacking := [kind for kind in setting.kinds if len(self.trained_patterns(kind)) > 1]:
            raise MethodError(
                f"central trains on complete samples, but some of {', '.join(lacking)} lack a modality: set "
                "training.missing: ignore, or leave out data.missing"
            )
        if options.personal:
            raise MethodError("central has no clients that could keep a part for themselves: leave out method.personal")

    def participates(self, kind: str, round: int) -> bool:
        """No client takes part."""
        return False

    def before(self, state: ServerState, round: int) -> Sequence[Work]:
        """A client's work for each kind, on the samples of all clients of the kind."""
        works = (self.work(kind, round) for kind in self.setting.kinds)
        return [replace(w, passes=tuple(replace(each, data=POOLED) for each in w.passes)) for w in works]


class Local(Method):
    """Every client trains a model of its own, and sends and receives nothing."""

    class Options(Method.Options):
        """``method: local``."""

        name: Literal["local"] = "local"

    summary = "every client trains by itself: a baseline, not federated"
    scores_own_models: ClassVar[bool] = True

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work, of which the client keeps everything."""
        work = super().work(kind, round)
        return replace(work, up=(), keep=tuple(item.name for payload in work.down for item in payload.items))
