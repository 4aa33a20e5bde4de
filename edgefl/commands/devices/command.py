"""``edgefl devices`` as it is typed: the profile library, profiles of one's own, and ``edgefl.calibrate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from edgefl.console.app import app, examples
from edgefl.console.derived import OnProgress, argument, command, option, silent
from edgefl.console.options import Force, Place

if TYPE_CHECKING:
    from edgefl.commands.devices.answer import Calibration, NewProfile
    from edgefl.records.devices import DeviceProfile, FleetSheet, Library, LinkProfile


class _ListOrShow(TyperGroup):
    """Lets users omit the subcommand: ``edgefl devices`` lists, ``edgefl devices NAME`` shows NAME."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell asks what may follow
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        elif args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


library = typer.Typer(
    name="devices",
    cls=_ListOrShow,
    help="List, show, derive and measure devices, links and fleets.",
    epilog=examples("edgefl devices", "edgefl devices raspberry-pi-4-4gb"),
)
app.add_typer(library, name="devices", rich_help_panel="A scenario")


@command(
    "edgefl devices list", "edgefl devices list --search phone", "edgefl devices list --links",
    answer="edgefl.records.devices:Library", forms={"table": "edgefl.commands.devices.table:print_devices"},
    parent=library,
)  # fmt: skip
def list_(
    *,
    search: Annotated[str | None, option("Profiles with this text in name or title.", "TEXT")] = None,
    devices: Annotated[bool, option("Devices only.")] = False,
    links: Annotated[bool, option("Links only.")] = False,
    fleets: Annotated[bool, option("Fleets only.")] = False,
) -> Library:
    """List devices, links and fleets with their main numbers.

    The profiles and libraries that are broken are named.
    """
    from edgefl.devices.browsing import browse

    sections = {"devices": devices, "links": links, "fleets": fleets}
    return browse(sections=tuple(section for section, is_asked in sections.items() if is_asked), search=search)


@command(
    "edgefl devices show raspberry-pi-4-4gb", "edgefl devices show lte --as json",
    answer="edgefl.records.devices:DeviceProfile", forms={"table": "edgefl.commands.devices.table:print_devices"},
    parent=library,
)  # fmt: skip
def show(
    name: Annotated[
        str, argument("A device (NAME@MODE in a power mode), link or fleet, or a YAML file of yours.", "NAME")
    ],
) -> DeviceProfile | LinkProfile | FleetSheet:
    """Show each number of a profile, with range and source.

    Also its confidence, and what the seconds of a device rest on.

    Raises:
        UnknownName: There is no device, link or fleet of this name.
        DeviceError: The file isn't a profile.
    """
    from edgefl.devices.browsing import describe

    return describe(name)


@command(
    "edgefl devices new my-pi --like raspberry-pi-4-4gb --memory 8GiB",
    "edgefl devices new my-5g --like 5g-nr --set upload_bits_per_second=20Mbit/s",
    answer="edgefl.commands.devices.answer:NewProfile", forms={"table": "edgefl.commands.devices.answer:lines_of"},
    parent=library,
)  # fmt: skip
def new(
    name: Annotated[str, argument("Name of the profile; the file is NAME.yaml, in folders that are made.", "NAME")],
    like: Annotated[str, option("Device (NAME@MODE in a power mode) or link to derive it from, or a file.", "NAME")],
    sets: Annotated[
        Sequence[str],
        option(
            "Another number, title, type or processor (ram_bytes=8GiB), or a link's trace (trace=FILE, period=1d). May "
            "be repeated.",
            "FIELD=VALUE",
            "--set",
        ),
    ] = (),
    *,
    memory: Annotated[str | None, option("RAM of the device, as --set ram_bytes: 8GiB.", "BYTES")] = None,
    force: Force = False,
) -> NewProfile:
    """Write a profile of your own, derived from another.

    It has all numbers of the other with their sources.  One that is set is an estimate, whose range is as wide as the
    other's in relation to its value, and whose source says so.  With the RAM the usable memory is scaled, and with the
    peak rate the other rates, unless they are set too.  A comment before each field says whether it is copied, scaled
    or given: edit what you know better.

    Returns:
        ``profile`` (device or link), its ``file``, ``like``, ``sets`` and ``scaled``, the fields that differ.

    Raises:
        UnknownName: There is no such device, link or field.
        DeviceError: The numbers don't go together, or the file exists or can't be written.
        UnitError: A number can't be read.
    """
    from pathlib import Path

    from edgefl.commands.devices.answer import NewProfile
    from edgefl.commands.devices.derived_profile import derived_profile
    from edgefl.errors import DeviceError, printable
    from edgefl.files import output

    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not path.stem.strip() or not path.stem.isprintable() or "@" in path.stem or "\0" in name:
        raise DeviceError(f"{printable(name)!r} can't be the name of a profile")
    of_memory = [] if memory is None else [f"ram_bytes={memory}"]
    profile, text, changed, scaled = derived_profile(path, like, [*of_memory, *sets])
    if path.exists() and not force:
        raise DeviceError(f"{path}: there is such a file already: choose another name, or add --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with output(path) as file:
            file.write(f"# Derived from {printable(like)}, by edgefl devices new.\n{text}".encode())
    except OSError as error:
        raise DeviceError(f"{path}: can't be written: {error.strerror}") from error
    return NewProfile(profile=profile, file=str(path), like=like, sets=changed, scaled=scaled)


@command(
    "edgefl devices calibrate --quick -o mydevice.yaml", "edgefl devices calibrate --from runs/boards-real -o boards",
    answer="edgefl.commands.devices.answer:Calibration",
    forms={"table": "edgefl.commands.devices.table:print_calibration"}, parent=library,
)  # fmt: skip
def calibrate(
    out: Annotated[
        Place | None, option("File for the profile: mydevice.yaml; with --from their folder.", "FILE", "--out", "-o")
    ] = None,
    *,
    run: Annotated[
        Place | None,
        option("Instead of this machine, the nodes of a run on real devices, in this folder.", "RUN", "--from"),
    ] = None,
    quick: Annotated[bool, option("Measure for some seconds instead of a minute, less exactly.")] = False,
    threads: Annotated[int | None, option("Threads of torch; default: all physical cores.", "N")] = None,
    device: Annotated[str, option("The processor to measure.", "cpu|cuda")] = "cpu",
    minutes: Annotated[float, option("Minutes of full load, to detect throttling.", "M", min=0)] = 0.0,
    address: Annotated[
        str | None,
        option(
            "Also measure the link to a --serve elsewhere, which is written next to the profile as NAME-link.yaml.",
            "HOST:PORT",
        ),
    ] = None,
    like: Annotated[str | None, option("Known link whose radio power is used.", "LINK")] = None,
    serve: Annotated[int | None, option("Only answer another machine's --address, until interrupted.", "PORT")] = None,
    watts: Annotated[
        float | str | None,
        option("Power at full load, if there is no sensor: 12W; default: what is usual for the type.", "W"),
    ] = None,
    idle_watts: Annotated[float | str | None, option("Power when idle, likewise.", "W")] = None,
    type: Annotated[str | None, option("microcomputer, laptop, phone, ...; default: a guess.", "TYPE")] = None,
    title: Annotated[str | None, option("Title in tables; default: processor name.", "TEXT")] = None,
    force: Force = False,
    on_progress: OnProgress = silent,
) -> Calibration:
    """Measure this machine, as a profile that a fleet can name.

    It takes about a minute, some seconds if ``quick``.  Times are wall time.  Without a file nothing is written.
    With the ``run`` of a scenario on real devices nothing is measured again: each of its devices gets a profile, which
    predicts the seconds that its nodes took.

    Returns:
        The devices and the link as edgefl reads them back, the files, and notes on what could not be measured.

    Raises:
        DeviceError: A file exists or can't be written, the address can't be reached, ``threads`` is below 1, or the
            run is simulated or has no measured work.
        RunError: There is no run.
        UnknownName: The type of device is unknown.
        UnitError: The watts can't be read.

    Examples:
        >>> import edgefl
        >>> answer = edgefl.calibrate("mydevice.yaml", quick=True)
        >>> answer.files
        ['mydevice.yaml']
    """
    import tempfile
    from pathlib import Path

    from edgefl import units
    from edgefl.commands.devices.answer import Calibration
    from edgefl.commands.devices.measured_machine import (
        MachineMeasurement,
        MeasuringOptions,
        profile_folder,
        profile_path,
        write_profile,
    )
    from edgefl.commands.devices.real_profiles import profiles_of
    from edgefl.devices import DEVICE_TYPES
    from edgefl.devices.writing import profile_text
    from edgefl.errors import DeviceError, UnknownName
    from edgefl.machine import host, link_speed
    from edgefl.runs.progress import messages
    from edgefl.work.torch_device import device_of

    if run is not None:
        given = {
            "--quick": quick, "--threads": threads, "--device": device != "cpu", "--minutes": minutes,
            "--address": address, "--like": like, "--serve": serve, "--watts": watts, "--idle-watts": idle_watts,
            "--type": type, "--title": title,
        }  # fmt: skip
        if measuring := [name for name, value in given.items() if value not in (None, False, 0.0)]:
            raise DeviceError(f"--from measures nothing again: leave out {', '.join(measuring)}")
        profiles, notes = profiles_of(Path(run))
        folder = profile_folder(out)
        paths = {name: profile_path(folder and folder / f"{name.replace('@', '-')}.yaml", force) for name in profiles}
        return Calibration(
            devices=[write_profile(text, paths[name], "device") for name, text in profiles.items()], links=[],
            files=[str(path) for path in paths.values() if path is not None], notes=notes,
        )  # fmt: skip
    on_message = messages(on_progress)
    if serve is not None:
        link_speed.serve(serve, on_message)
    device_path = profile_path(out, force)
    link_path = device_path.with_name(f"{device_path.stem}-link.yaml") if device_path and address else None
    if link_path is not None:
        profile_path(link_path, force)
    if type is not None and type not in DEVICE_TYPES:
        raise UnknownName("type of device", type, DEVICE_TYPES)
    if threads is not None and threads < 1:
        raise DeviceError(f"--threads must be at least 1, not {threads}")
    options = MeasuringOptions(
        quick,
        threads or host.physical_cores(),
        device_of(device),
        60 * minutes,
        None if watts is None else units.WATTS.parse(watts),
        None if idle_watts is None else units.WATTS.parse(idle_watts),
        type or host.device_type_here(),
        device_path.parent if device_path else Path(tempfile.gettempdir()),
    )
    link = None
    if address is not None:
        link = link_speed.measure_link(address, quick=quick, like=like, on_message=on_message)
    measured = MachineMeasurement(options, on_message)
    texts = {"title": title or measured.title, "type": options.type, "processor": measured.processor}
    return Calibration(
        devices=[write_profile(profile_text(texts, measured.entries), device_path, "device")],
        links=[] if link is None else [write_profile(link, link_path, "link")],
        files=[str(path) for path in (device_path, link_path) if path is not None],
        notes=measured.notes,
    )
