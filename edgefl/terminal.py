"""stdout and stderr that show text of strangers without obeying it: the boundary through which commands print."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from edgefl.errors import visible

NAMES = ("stdout", "stderr")


class EscapedStream(io.TextIOBase):
    """A stream whose control characters, and what the terminal can't print, come out as escapes: ``\\x1b``.

    It has no binary ``buffer``, so nothing is written past it.  Styles are added below it, by consoles of rich, which
    ask for ``rich_proxied_file`` (``drawing.text_tables.Screen`` lets no other control characters through).  On a
    terminal a write may begin with a carriage return, as progress bars of other libraries do.
    """

    def __init__(self, stream: TextIO):
        self.stream = stream

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream at the bottom, to which consoles write what they have styled."""
        stream = self.stream
        while (below := getattr(stream, "rich_proxied_file", None)) is not None:
            stream = below
        return stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # that of the class can be set
        """The encoding of the stream below."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What is done with characters that the encoding lacks."""
        return getattr(self.stream, "errors", None)

    def write(self, text: str, /) -> int:
        """Write the text with escapes.  Raises OSError if it can't be written."""
        bar = text[:1] == "\r" and self.isatty()
        self.stream.write(f"\r{visible(text[1:])}" if bar else visible(text))
        return len(text)

    def flush(self) -> None:
        """Write what is waiting; nothing is where the stream below was closed before this one."""
        if not getattr(self.stream, "closed", False):
            self.stream.flush()

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The file descriptor of the stream below."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """True."""
        return True


def say(text: str) -> None:
    """Print a message on stderr, with ``edgefl:`` before it; it is lost where stderr is a file on a full disk."""
    with suppress(OSError):
        sys.stderr.write(f"edgefl: {text}\n")


def warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Print a warning as one line on stderr; a replacement for ``warnings.showwarning``."""
    say("warning: " + " ".join(str(message).split()))


def guard() -> None:
    """Put stdout and stderr behind ``EscapedStream``, as a worker process does; a closed stream stays as it is."""
    for name in NAMES:
        if (stream := getattr(sys, name)) is not None and not isinstance(stream, EscapedStream):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, EscapedStream(stream))


@contextmanager
def escaped_streams() -> Iterator[None]:
    """Put stdout and stderr behind ``EscapedStream`` while a command runs.

    After an exception that isn't SystemExit they stay there, since Python prints its traceback to them.
    """
    before = {name: getattr(sys, name) for name in NAMES}
    errors = {name: getattr(stream, "errors", None) for name, stream in before.items()}
    guard()
    put = {name: getattr(sys, name) for name in NAMES}
    try:
        yield
    except SystemExit:
        _restore(put, before, errors)
        raise
    _restore(put, before, errors)


def _restore(put: dict[str, Any], before: dict[str, Any], errors: dict[str, str | None]) -> None:
    for name, stream in before.items():
        if getattr(sys, name) is put[name]:  # typer puts a stream of its own there after a broken pipe
            setattr(sys, name, stream)
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(errors=errors[name])
