"""The image tower ``timm``: any model of timm that gives features, trained as a whole."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import MethodError, suggestion
from edgefl.models.towers.vision import import_torchvision


class TimmModel(nn.Module):
    """A timm model without its classifier: ``[batch, channels, size, size] -> [batch, width]``.

    Its stages differ in width, so schedules can't cut it; plain ViTs can be cut as ``timm-vit``.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        variant: Annotated[str, Field(description="name of a model of timm")] = "mobilenetv3_small_100",
    ):
        super().__init__()
        import_torchvision()
        import timm

        names = timm.list_models()
        if variant not in names:
            near = suggestion(variant, names)
            near = near if "did you mean" in near else ""
            raise MethodError(f"timm has no model {variant!r}{near}: see timm.list_models()")
        given: dict[str, Any] = {"in_chans": channels, "num_classes": 0}
        try:
            self.model = _created(timm, variant, size, given)
        except MethodError:
            raise
        except Exception as error:  # each model refuses in its own way
            said = " ".join(str(error).split())
            raise MethodError(f"{variant} can't be built for {channels} x {size} x {size} pictures: {said}") from error
        model: Any = self.model
        self.width = int(getattr(model, "head_hidden_size", None) or model.num_features)

    def own_name(self, name: str) -> str:
        """timm's name of a tensor."""
        return name.removeprefix("model.")

    def forward(self, image: Tensor) -> Tensor:
        """The features before the classifier."""
        features: Tensor = self.model(image)
        return features


def _created(timm: Any, variant: str, size: int, given: dict[str, Any]) -> nn.Module:
    """The model; those of a fixed size are told it."""
    try:
        model: nn.Module = timm.create_model(variant, img_size=size, **given)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        model = timm.create_model(variant, **given)
    return model
