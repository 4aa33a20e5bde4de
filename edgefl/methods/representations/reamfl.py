"""reamFL: CreamFL without local contrast and GCA (Yu et al., ICLR 2023, Table 1).

A client trains on private data only, and sends its representations of the public pairs.  The server is distilled from
an average of them, with the same weights for every sample.  The three names are the averages of CreamFL's comparison.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from edgefl.methods.representations.creamfl import CreamFL


class ReamFL(CreamFL):
    """CreamFL without local contrast, with an average instead of GCA."""

    class Options(CreamFL.Options):
        """CreamFL's fields; those of local contrast and GCA are fixed."""

        contrast: Literal[0] = Field(0, description="always 0: this method has no local contrast")

        fixed: ClassVar[tuple[str, ...]] = (
            "aggregation", "contrast", "inter", "intra", "steps", "rescale", "temperature", "old",
        )  # fmt: skip

        @model_validator(mode="before")
        @classmethod
        def _reject_fixed_fields(cls, given: Any) -> Any:
            for field in cls.fixed:
                if field in given and given[field] != (default := cls.model_fields[field].default):
                    name = cls.model_fields["name"].default
                    raise ValueError(
                        f"{field}: {given[field]} is not allowed, as {name} fixes it at {default}: use creamfl instead"
                    )
            return given

    options: ReamFL.Options


class ReamFLMean(ReamFL):
    """Clients have equal weight."""

    class Options(ReamFL.Options):
        """``method: reamfl-mean``."""

        name: Literal["reamfl-mean"] = "reamfl-mean"  # type: ignore[assignment]
        aggregation: Literal["mean"] = Field(
            "mean", description="weights of the clients' representations, fixed by the method's name"
        )

    summary = "CreamFL's exchange without contrast, by the plain mean (reamFL + Mean)"
    paper = "Yu et al. 2023"
    options: ReamFLMean.Options


class ReamFLAvg(ReamFL):
    """Clients are weighted by their number of samples."""

    class Options(ReamFL.Options):
        """``method: reamfl-avg``."""

        name: Literal["reamfl-avg"] = "reamfl-avg"  # type: ignore[assignment]
        aggregation: Literal["average"] = Field(
            "average", description="weights of the clients' representations, fixed by the method's name"
        )

    summary = "CreamFL's exchange without contrast, averaged by samples (reamFL + Avg)"
    paper = "Yu et al. 2023"
    options: ReamFLAvg.Options


class ReamFLIoT(ReamFL):
    """Clients are weighted by their number of samples, those with pairs 100 times as much."""

    class Options(ReamFL.Options):
        """``method: reamfl-iot``."""

        name: Literal["reamfl-iot"] = "reamfl-iot"  # type: ignore[assignment]
        aggregation: Literal["iot"] = Field(
            "iot", description="weights of the clients' representations, fixed by the method's name"
        )

    summary = "CreamFL's exchange without contrast, as FedIoT: pairs count 100 times (reamFL + IoT)"
    paper = "Yu et al. 2023"
    options: ReamFLIoT.Options
