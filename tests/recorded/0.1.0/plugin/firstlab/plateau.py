from typing import Literal

from pydantic import Field

from edgefl.schedules import Layerwise


class Plateau(Layerwise):
    """Layer-wise stages, each of which ends when the training loss stops falling."""

    adapts = True

    class Options(Layerwise.Options):
        name: Literal["plateau"] = "plateau"
        gain: float = Field(0.05, ge=0, lt=1, description="least fall of the loss in a round, as a share of it")

    def __init__(self, options, blocks):
        super().__init__(options, blocks)
        self.gain, self.best = options.gain, None

    def learn(self, seen):
        losses = [loss for loss in seen.losses.values() if loss is not None]
        if not losses:
            return
        loss = sum(losses) / len(losses)
        stalls = self.best is not None and loss > (1 - self.gain) * self.best
        self.best = loss if self.best is None else min(loss, self.best)
        if stalls and self.end_stage(seen.round):
            self.best = None

    def written(self):
        return {**super().written(), "best": self.best}

    def restore(self, facts):
        super().restore(facts)
        self.best = facts["best"]
