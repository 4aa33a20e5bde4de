"""The page ``errors.md``: the errors and the exit codes."""

from __future__ import annotations

import signal

from edgefl import errors
from edgefl.commands.profile import against
from edgefl.console.stopping import SIGNALS, StopSignal, exit_code
from edgefl.scenario import problems
from tools.pages.markdown import capital, first_paragraph, page, table

EXIT_CODES = {
    "new": ("the scenario is written", "", ""),
    "validate": ("the scenario can be run; the schema is printed or written", "", ""),
    "parts": ("the list is printed; parts that are broken are named on stderr", "", ""),
    "devices": (
        "the list or the profile is printed, the machine was measured, or the file is written; parts that "
        "are broken are named on stderr",
        "",
        "nothing is written; `calibrate --serve` always ends so",
    ),
    "profile": ("the profile is printed", "with `--against`, a cost grew by more than `--fail-above`", ""),
    "sweep": (
        "every cell has its row",
        "with `--train`, a work failed while it ran",
        "with `--out`, the same command goes on",
    ),
    "fit": (
        "every kind fits as it is, or after one of the changes shown",
        "some kind fits neither as it is nor after any change that was tried ([what that "
        "means](../guides/fit.md#exit-codes))",
        "",
    ),
    "run": (
        "every run is finished, and clients could train in one at least; with `--verify`, every rule holds",
        "a client's or the server's work failed while it ran; every run is finished, but no client fits its "
        "budgets in any; with `--verify`, a rule is broken",
        "finished rounds are kept: `edgefl run --resume DIR` goes on",
    ),
    "tune": (
        "the best settings are printed and written",
        "the models of all trials diverged, or a work failed while it ran",
        "trials are kept: the same command with `-o DIR` goes on",
    ),
    "bench": (
        "the answer is printed and written",
        "runs failed, after all others have ended",
        "what was trained is kept: the same command with `-o DIR` goes on",
    ),
    "analyse": ("the analysis is printed and written", "a work failed while it ran", "the same command goes on"),
    "compare": ("the rows are printed", "", ""),
    "explain": ("the round is explained", "", ""),
    "report": ("the page is written", "", ""),
    "export": (
        "tables, logs, figures or towers are written",
        "",
        "the folder may be incomplete; the same command renews it",
    ),
    "doctor": ("no check found an error; there may be warnings", "a check found an error", "nothing is left behind"),
}
"""For each command: the meaning of exit codes 0 and 1, and what an interruption leaves."""

CODES = {
    0: "The command did what was asked",
    1: "Something failed, or the answer is no. The next table has the cases of each command. Also where the reader of "
    "stdout closed it, and after an unexpected exception (with a traceback)",
    2: "The user can fix it: an `EdgeflError` with this code, an unknown command or option, a profile that "
    "`--against` can't compare, or a full disk, also the one that stdout goes to",
    **{
        exit_code(StopSignal(number)): meaning
        for number, meaning in {
            signal.SIGHUP: "Stopped by SIGHUP, as by a terminal that closes; not what `nohup` starts, which ignores it",
            signal.SIGINT: "Stopped by SIGINT, as by Ctrl-C; not a shell's background job, which ignores it",
            signal.SIGTERM: "Stopped by SIGTERM, as by `kill`, `timeout` or a service that stops",
        }.items()
    },
}
"""Each code after a signal is 128 and the signal's number, as shells count."""

*_FIRST, _LAST = sorted(str(exit_code(StopSignal(number))) for number in SIGNALS)
INTERRUPTED = f"{', '.join(_FIRST)} or {_LAST}"
"""The codes after a signal."""

ATTRIBUTES = [
    ("`EdgeflError`", "`exit_code`", "Exit code of the command line: 2, or 1 for `TrainingError` (2 where a CUDA "
     "device is asked for and there is none)"),
    ("`ScenarioError`", "`file`, `line`, `key`, `message`", "Where and what; `None` for a part that isn't known. "
     "`str()` is `file:line: key: message`"),
    ("`ScenarioErrors`", "`errors`", "All errors of the scenario by line; `file`, `line`, `key` and "
     "`message` are the first one's"),
    ("`UnknownName`", "`noun`, `name`, `allowed`, `hint`", "The kind of thing, the unknown name, the known names, "
     "sorted, and a hint (\"\" if there is none)"),
    ("`UnknownNames`", "`errors`", "The errors, one for each name"),
    ("`RowsDiffer`", "`answer`", "The profile; its `against` compares the rows that both profiles have"),
]  # fmt: skip
"""Attributes of errors besides their message."""


def errors_page() -> str:
    """The page of the errors and the exit codes."""
    rows = [
        (
            f"`{error.__module__}.{error.__name__}`",
            f"`{error.__bases__[0].__name__}`",
            str(error.exit_code),
            first_paragraph(error.__doc__),
        )
        for error in error_classes()
    ]
    codes = [
        (f"[`{name}`](commands.md#edgefl-{name})", *(capital(text) or "–" for text in meanings))
        for name, meanings in EXIT_CODES.items()
    ]
    return page(
        "Errors and exit codes",
        [
            "Every error that edgefl raises on purpose derives from `edgefl.errors.EdgeflError`. The message names the "
            "fault, its place and the allowed values. On the command line it is one line on stderr, without a "
            "traceback. Any other exception is a fault of edgefl or of a plug-in.",
            "## Errors",
            f"```text\n{_tree(errors.EdgeflError)}\n```",
            table(("Error", "Base", "Exit code", "Meaning"), rows),
            "## Attributes",
            table(("Error", "Attribute", "Meaning"), ATTRIBUTES),
            "## Exit codes",
            table(("Code", "Meaning"), [(str(code), meaning) for code, meaning in CODES.items()]),
            f"After one of these signals ({INTERRUPTED}) every command ends alike. A line on stderr says how to go on, "
            "finished results are written, and no process is left. A second signal, more than a second after the "
            "first, ends the command at once, as SIGKILL does. Its processes end too, and a run can be resumed. A "
            "signal before the command line is read also ends the command at once. In a script of your own "
            "`edgefl.run` leaves signals as they are, so Ctrl-C is Python's `KeyboardInterrupt`, and SIGTERM ends the "
            "script at once.",
            table(("Command", "0", "1", f"After {INTERRUPTED}"), codes),
        ],
    )


ERROR_MODULES = (errors, against, problems)
"""The modules that define errors."""


def error_classes() -> list[type[errors.EdgeflError]]:
    """Every error class of edgefl; the base class is first."""
    return [
        error
        for module in ERROR_MODULES
        for error in vars(module).values()
        if isinstance(error, type) and issubclass(error, errors.EdgeflError) and error.__module__ == module.__name__
    ]


def _tree(error: type[errors.EdgeflError], indent: str = "") -> str:
    lines = [error.__name__]
    children = [child for child in error_classes() if child.__bases__[0] is error]
    for child in children:
        inner = _tree(child, indent + ("    " if child is children[-1] else "|   "))
        lines.append(f"{indent}+-- {inner}")
    return "\n".join(lines)
