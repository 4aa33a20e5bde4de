from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from edgefl.schedules import PARTS, Schedule, Stage


class Thaw(Schedule):
    """First only what stands behind the blocks trains, then everything."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)
        name: Literal["thaw"] = "thaw"
        warm_up: int = Field(1, ge=0, description="rounds in which embedding and blocks are frozen")
        rounds: int = Field(10, ge=1, description="rounds in all")

    def __init__(self, options, blocks):
        whole, zero = dict(blocks), dict.fromkeys(blocks, 0)
        warm_up = min(options.warm_up, options.rounds)
        frozen = Stage(1, depth=whole, first=whole, parts=("norm", "rep", "head"), rounds=warm_up)
        thawed = Stage(2, depth=whole, first=zero, parts=PARTS, rounds=options.rounds - warm_up)
        super().__init__((frozen, thawed))
