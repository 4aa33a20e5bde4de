"""Writing records: one line of JSON each, or many lines from columns of numbers.

NaN and infinity are written as null, so that any JSON parser can read a file; fields that are UNSET are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from edgefl.errors import suggestion
from edgefl.records.record import ENCODER, Record, always, types_of


def line(record: object) -> bytes:
    """A record, or any JSON data, as a line of JSON with a final newline.

    Raises TypeError for a value that JSON can't represent.
    """
    return ENCODER.encode(record) + b"\n"


def inner(record: object) -> bytes:
    """The fields of a record as JSON without the brackets: part of a line that many records share."""
    return ENCODER.encode(record)[1:-1]


def texts(numbers: Any) -> list[bytes]:
    """The JSON text of each number of a sequence or an array, `[n]`."""
    import numpy as np  # here: tables of a finished run wait for nothing slow

    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    return text.split(b",") if text else []


class RecordTemplate:
    """Lines of one class of record from columns of JSON text, written by a template without making the records.

    A line has the ``own`` fields, of which there is a column each, and those of ``groups``: classes that the record
    inherits from, whose fields come as text (``inner``), which many lines may share.  That these are the fields of the
    class is checked once, here: TypeError for one that it hasn't, or that is missing and isn't a Maybe.
    """

    def __init__(self, cls: type[Record], own: Sequence[str], groups: Sequence[type[Record]] = ()):
        known = types_of(cls)
        given = [*own, *(name for group in groups for name in types_of(group))]
        for name in given:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no field {name!r}{suggestion(name, known)}")
        if twice := {name for name in given if given.count(name) > 1}:
            raise TypeError(f"{cls.__name__}: {', '.join(sorted(twice))} would be written twice")
        if missing := [name for name, hint in known.items() if name not in given and always(hint)]:
            raise TypeError(f"{cls.__name__}: nothing writes {', '.join(missing)}")
        self.own = tuple(own)
        parts = [*(b'"%b":%%b' % name.encode() for name in own), *(b"%b" for _ in groups)]
        self._template = b"{" + b",".join(parts) + b"}\n"

    def lines(self, columns: Mapping[str, Sequence[bytes]], *groups: Sequence[bytes]) -> list[bytes]:
        """One line for each entry of the columns; ``groups`` has a column of texts for each group, without brackets.

        The columns may be in any order.  Raises ValueError unless all are equally long.
        """
        template = self._template
        return [template % entry for entry in zip(*(columns[name] for name in self.own), *groups, strict=True)]
