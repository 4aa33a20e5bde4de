"""Personal parts of a model: they stay on each client and are never sent (FedPer, Arivazhagan et al. 2019)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from edgefl.errors import MethodError
from edgefl.models.adapters import belongs
from edgefl.work import Work


def check_parts(parts: Sequence[str], names: Collection[str]) -> None:
    """Raise MethodError if none of these parameters belongs to a part."""
    for part in parts:
        if not any(belongs(name, part) for name in names):
            own = sorted({".".join(name.split(".")[:2]) for name in names})
            raise MethodError(f"personal: no model has a part {part!r}; the parts are {', '.join(own)}")


def keep_personal(work: Work, parts: Sequence[str]) -> Work:
    """The work whose client keeps these parts of its model; they train as before.

    Raises MethodError if nothing of the model would be sent.
    """
    names = [item.name for payload in work.down for item in payload.items if not item.is_beside_model]
    mine = [name for name in names if any(belongs(name, part) for part in parts)]
    if len(mine) == len(names):
        raise MethodError(f"personal: nothing of the model of kind {work.kind!r} would be sent; leave a part out")
    up = tuple(payload.only(lambda item: item.parameter not in mine) for payload in work.up)
    return replace(work, up=up, keep=(*work.keep, *(name for name in mine if name not in work.keep)))
