"""What a sweep refuses before anything is computed or written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgefl.cells.cells import check_jobs
from edgefl.commands.sweep.stored_rows import check_value
from edgefl.devices import load_link
from edgefl.drawing.figures import PAGE_FORMS, SWEEP_FORMS, check_figure
from edgefl.errors import RunError

if TYPE_CHECKING:
    from edgefl.setup.compose import Given

File = str | os.PathLike[str] | None


def scenarios_of(given: Any) -> list[Given]:
    """The scenarios of a list, or the only one; what is neither is refused when it is read."""
    return list(given) if isinstance(given, list | tuple) and given else [given]


def check_options(
    *, scenarios: int, out: File, train: bool, shard: str | None, jobs: int | None, address: str | None, page: File,
    figure: File, value: str, sensitivity: str | None, devices: Sequence[str], link: str | None, stage: int | None,
    kind: str | None,
) -> None:  # fmt: skip
    """Raise RunError for options that don't go together, and what else is wrong with them.

    UnitError: ``sensitivity``; UnknownName: ``value``, ``link`` or a device; DeviceError: a profile.
    """
    for is_wrong, told in (
        (shard and out is None, "a shard needs a folder that all shards write to: add --out DIR"),
        (shard and (figure or sensitivity),
         "a shard has only some rows: leave out --figure and --sensitivity, and sweep again without --shard"),
        (train and out is None, "training needs a folder to keep each cell's run in: add --out DIR"),
        (page and scenarios > 1, f"--page takes one scenario, whose choices it has, and not {scenarios}"),
        ((page or devices) and (shard or address),
         f"--page and --devices price all cells on this machine: leave out {'--shard' if shard else '--address'}"),
        (not devices and (link or kind or stage is not None),
         "--link, --stage and --kind are of the devices: add --devices all"),
    ):  # fmt: skip
        if is_wrong:
            raise RunError(told)
    if devices:
        from edgefl.commands.sweep.on_devices import devices_named

        devices_named(devices)
    check_jobs(1 if jobs is None else jobs, address)
    if sensitivity is not None:
        from edgefl.commands.sweep.sensitivity import errors_of

        errors_of(sensitivity, {})
    check_value(value, train=train)
    if link is not None:
        load_link(link)
    for file, forms in ((figure, SWEEP_FORMS), (page, PAGE_FORMS)):
        if file is not None:
            check_figure(file, forms)
