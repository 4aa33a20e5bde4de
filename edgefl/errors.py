"""The exceptions that edgefl raises on purpose.

EdgeflError                      (exit code 2: the user can correct it; shown without a traceback)
+-- ScenarioError                a scenario file is wrong; holds file, line and key
+-- UnknownName                  no part is registered under a name; the message suggests the nearest name
|   +-- UnknownNames             several names, a line each
+-- UnitError                    a quantity can't be parsed, such as "12 parsecs" where bytes were expected
+-- DataError                    a data set is missing, empty or has the wrong layout
+-- DeviceError                  a device, link or fleet description is wrong
+-- PluginError                  a plug-in can't be imported, raised an exception, or tried to end the program
+-- MethodError                  a method, schedule or work that doesn't fit the protocol
+-- RunError                     a run directory can't be written, read or resumed
+-- UncountedOperator            a matrix-multiplication operator without a FLOP formula
+-- TrainingError                a client's or server's work failed while it ran (exit code 1)
    +-- DivergedError            the model isn't finite any more (exit code 1)
    +-- OutOfHostMemory          this machine's memory doesn't suffice for a work (exit code 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

LONGEST_WORD = 300
"""Most characters of a message without a space between them; a longer word loses its middle.

A choice: paths of Linux's file systems have names of 255 bytes at most, and stay whole.
"""
LONGEST_LINE = 960
"""Most characters of a line of a message; a longer line loses its middle. A choice: eight lines of 120."""


_UNSAFE = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb]"
)
"""Control characters but line feeds, separators of lines, marks of the direction of text, and halves of characters."""


def visible(text: str) -> str:
    """``text`` with escapes, such as ``\\x1b``, for characters that steer a terminal or turn the order of others."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {9: "\\t", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


class EdgeflError(Exception):
    """Base of all errors that edgefl raises on purpose.  ``exit_code`` is the command line's exit code.

    ``answer`` is what was found or done by then, which a command prints before the error.
    Words and lines of a message that are too long to read, such as a key of 100,000 characters, are shortened, and
    control characters are written as escapes.
    """

    exit_code = 2
    answer: object = None

    def __init__(self, *args: object):
        super().__init__(*(shorten_text(arg) if isinstance(arg, str) else arg for arg in args))


class ScenarioError(EdgeflError):
    """A scenario that can't be run.  The message gives the bad value and what is allowed.

    ``str()`` is ``file:line: key: message``; parts that are unknown are left out.
    """

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None, key: str | None = None):
        self.message, self.file, self.line, self.key = shorten_text(message), file, line, key
        where = f"{file}:{line}" if file and line else (file or "")
        super().__init__(": ".join(part for part in (where, key or "", message) if part))


class UnknownName(EdgeflError):
    """``name`` isn't among the ``allowed`` names of this ``noun`` ("device", "method", ...).

    ``hint`` says what the name is instead; the message then suggests no other.
    """

    def __init__(self, noun: str, name: object, allowed: Iterable[str], hint: str = ""):
        self.noun, self.name, self.allowed, self.hint = noun, name, sorted(allowed), hint
        told = f"; {hint}" if hint else suggestion(str(name), self.allowed)
        super().__init__(f"unknown {noun} {name!r}{told}")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[Any, ...]]:
        # Pickling rebuilds an exception from its message, which isn't an argument of this class.  Worker processes
        # send exceptions to the parent process that way.
        return type(self), (self.noun, self.name, self.allowed, self.hint)


MOST_TOLD = 20
"""Errors that a message lists. A choice: they fit a terminal of 24 lines, and whoever mends them asks again."""


def list_errors(errors: Sequence[Exception]) -> str:
    """A line for each of the first errors, and how many more there are."""
    more = len(errors) - MOST_TOLD
    return "\n".join([*map(str, errors[:MOST_TOLD]), *([f"and {more:,} more"] if more > 0 else [])])


class UnknownNames(UnknownName):
    """Several unknown names, a line for each of the first 20; noun, name and allowed are those of the first."""

    def __init__(self, errors: Sequence[UnknownName]):
        super().__init__(errors[0].noun, errors[0].name, errors[0].allowed, errors[0].hint)
        self.errors = tuple(errors)
        self.args = (list_errors(errors),)

    def __reduce__(self) -> tuple[type[UnknownNames], tuple[Any, ...]]:
        return type(self), (self.errors,)


class UnitError(EdgeflError):
    """A quantity whose number or unit can't be parsed."""


class DataError(EdgeflError):
    """A data set that is missing, empty, or doesn't have the expected layout."""


class DeviceError(EdgeflError):
    """A device, link or fleet description that is incomplete or wrong.

    ``errors`` are those of one file, if it has several; the message has a line for each.  ``line`` is that of the file.
    """

    line: int | None = None
    errors: tuple[DeviceError, ...] = ()


class MethodError(EdgeflError):
    """A method, schedule or work that doesn't fit the protocol, or parts that can't be combined."""


class ValuesGone(MethodError):
    """A parameter of an update was read that had been added up as it arrived, and isn't held any longer."""


class PluginError(EdgeflError):
    """A plug-in that can't be imported, or whose code failed.

    The message names the plug-in and its file; ``__cause__`` is what was raised there.
    """


class RunError(EdgeflError):
    """A run directory that can't be created, written, read or resumed."""


class UncountedOperator(EdgeflError):
    """A matrix-multiplication operator that has no FLOP formula.  Counting it as zero FLOPs would hide the error."""


class TrainingError(EdgeflError):
    """A work failed while it ran; the message names the node and the work's kind."""

    exit_code = 1


class OutOfHostMemory(TrainingError):
    """The memory of this machine, or of its GPU, doesn't suffice for a task.

    It says nothing about the client, whose memory is judged by predictions.
    """


class DivergedError(TrainingError):
    """The model's weights, scores or losses aren't finite any more, and ``training.on_divergence`` is ``stop``."""


def shorten_text(text: str) -> str:
    """``text`` with "..." for the middle of words above ``LONGEST_WORD`` and of lines above ``LONGEST_LINE``.

    Control characters, by which a terminal could be steered, are written as escapes.
    """
    text = visible(text)
    if len(text) <= LONGEST_WORD:
        return text
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: _ends(word[0], LONGEST_WORD), text)
    return "\n".join(_ends(line, LONGEST_LINE) for line in words.split("\n"))


def _ends(text: str, most: int) -> str:
    """``text`` without its middle if it has more than ``most`` characters; the end is kept, too."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}...{text[-(most - most * 2 // 3 - 3) :]}"


def printable(name: str) -> str:
    """A name of a user's file for a message: line breaks and other characters that don't print are escapes."""
    return name if name.isprintable() else repr(name)[1:-1]


def text_of(error: BaseException) -> str:
    """What ``str`` says of an exception, whose own code may fail to say it; "" if it says nothing."""
    try:
        return str(error)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as failure:  # a plug-in's ``__str__`` may raise anything
        return f"its text can't be told, as that raises {type(failure).__name__}"


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the allowed names that it may stand for, otherwise all allowed names.

    These are the one that differs in case alone, those that it abbreviates (``pi4``), the most similar one, or the one
    that abbreviates it (``lr`` for ``learning_rate``).
    """
    if not (allowed := [printable(each) for each in allowed]):
        return ""
    short = name[:LONGEST_WORD]
    near = [each for each in allowed if each.lower() == short.lower()]
    initials = "".join(word[0] for word in re.split(r"[_ -]+", short.lower()) if word)
    near = near or _match_abbreviation(short, allowed) or get_close_matches(short, allowed, n=1, cutoff=0.6)
    near = near or [each for each in allowed if len(initials) > 1 and each.lower() == initials]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; allowed: {', '.join(allowed)}"


def _match_abbreviation(short: str, allowed: Sequence[str]) -> list[str]:
    """The names of which words begin with the letters and numbers of ``short`` in their order."""
    pieces = re.findall(r"[a-z]+|\d+", short.lower())
    if sum(map(len, pieces)) < 2:
        return []
    pattern = re.compile(r".*?".join(rf"\b{piece}" for piece in pieces))
    between = re.compile(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])")
    return [each for each in allowed if pattern.search(between.sub(" ", each.lower()))]


def install_hint(extra: str) -> str:
    """How to install one of edgefl's extras, for messages: edgefl itself is on no package index."""
    return f"in edgefl's checkout, run pip install '.[{extra}]'"
