"""``edgefl parts`` as it is typed, and ``edgefl.parts`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import argument, command

if TYPE_CHECKING:
    from edgefl.commands.parts.answer import Parts


@command(
    "edgefl parts", "edgefl parts data-set", "edgefl parts method fedcola",
    answer="edgefl.commands.parts.answer:Parts", forms={"table": "edgefl.commands.parts.table:print_parts"},
)  # fmt: skip
def parts(
    kind: Annotated[
        str | None, argument("A kind of part: method, schedule, data-set, ...; all without it.", "KIND")
    ] = None,
    name: Annotated[str | None, argument("One part, with its options.", "NAME")] = None,
) -> Parts:
    """List what a scenario can name, or one part with its options.

    Parts of plug-ins are among them.

    Returns:
        ``sections``: the parts of each kind with a line each and their options; ``broken``: what is left out.

    Raises:
        UnknownName: There is no such kind, or no part of it has this name.

    Examples:
        >>> import edgefl
        >>> [part.name for part in edgefl.parts("adapter").sections["adapter"]]
        ['bitfit', 'dora', 'lora', 'none']
        >>> [option.name for option in edgefl.parts("method", "fedprox").sections["method"][0].options]
        ['mu', 'norm', 'personal']
    """
    from edgefl.commands.parts.schema_parts import kind_names, only, parts_of
    from edgefl.errors import UnknownName

    kinds = kind_names()
    if kind is not None and kind not in kinds:
        raise UnknownName("kind of part", kind, kinds)
    found = parts_of(kinds if kind is None else [kind])
    return found if name is None or kind is None else only(found, kind, name)
