"""Pages of the documentation as programs: write their files, run their commands and snippets.

In a page a fenced block is

- a file, if its first line is a comment with a file name (``# mylab/sparse.py``);
- ``bash``: commands of other machines, such as a cluster's, which are not run;
- ``sh``: commands, one a line; ``python``: a snippet, all those of a page in one namespace;
- ``yaml`` without a name: some sections of a scenario;
- ``text``: the output of the block before it, in which a line ``...`` stands for any lines.

A comment ``<!-- slow -->`` before a block excludes it from the quick tests.  ``<!-- exit 2 -->`` gives the exit code
of its command, and ``<!-- interrupt -->`` stops the command after its second round.  Before a picture,
``<!-- from runs/x/curves.png -->`` says of which file it is a copy, or of which HTML page it shows the top.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOME = "/home/you/study"
"""Name that a page shows for the folder in which it runs."""

PAGES = (
    "README.md",
    "docs/index.md",
    "docs/get-started/install.md",
    "docs/get-started/first-run.md",
    "docs/get-started/first-scenario.md",
    "docs/get-started/faq.md",
    "docs/get-started/coming-from-flower.md",
    "docs/guides/command-line.md",
    "docs/guides/own-data.md",
    "docs/guides/edge-data.md",
    "docs/guides/hugging-face-data.md",
    "docs/guides/nights-and-batteries.md",
    "docs/guides/pre-trained.md",
    "docs/guides/own-model.md",
    "docs/guides/own-method.md",
    "docs/guides/own-schedule.md",
    "docs/guides/own-aggregation.md",
    "docs/guides/own-parts.md",
    "docs/guides/who-fits.md",
    "docs/guides/split.md",
    "docs/guides/privacy.md",
    "docs/guides/private-clients.md",
    "docs/guides/describe-a-device.md",
    "docs/guides/measure-a-device.md",
    "docs/guides/reproduce-a-paper.md",
    "docs/guides/verify-and-resume.md",
    "docs/guides/understand-a-run.md",
    "docs/guides/analyse.md",
    "docs/guides/use-the-result.md",
    "docs/guides/many-scenarios.md",
    "docs/guides/own-devices.md",
    "docs/guides/slurm.md",
    "docs/guides/sweep.md",
    "docs/guides/sliders.md",
    "docs/guides/fit.md",
    "docs/guides/tune.md",
    "docs/guides/bench.md",
    "docs/guides/fine-tune.md",
    "docs/guides/lora-bert.md",
    "docs/guides/image-captions.md",
    "docs/guides/results-for-a-paper.md",
    "docs/concepts/how-it-works.md",
    "docs/concepts/time-and-energy.md",
    "docs/project/help.md",
    "docs/project/promises.md",
    "docs/concepts/schedules.md",
    "docs/concepts/evaluation.md",
    "docs/concepts/fleets.md",
    "docs/concepts/rounds.md",
    "docs/concepts/methods.md",
    "docs/concepts/methods/averaging.md",
    "docs/concepts/methods/drift.md",
    "docs/concepts/methods/fedcola.md",
    "docs/concepts/methods/depthfl.md",
    "docs/concepts/methods/representations.md",
    "docs/concepts/methods/prototypes.md",
    "docs/concepts/methods/baselines.md",
    "docs/concepts/methods/aggregation.md",
    "docs/concepts/methods/training.md",
    "docs/concepts/memory.md",
    "docs/concepts/flops-and-bytes.md",
    "docs/evidence/memory.md",
    "docs/evidence/seconds.md",
    "docs/reference/devices.md",
    "docs/reference/data-sets.md",
    "docs/reference/towers.md",
    "docs/reference/refusals.md",
    "docs/concepts/methods/personal.md",
    "docs/reference/records.md",
)

EXAMPLES = (*PAGES, "CONTRIBUTING.md")
"""Pages whose files form the package ``mylab``."""

BLOCK = re.compile(r"(?:^<!-- ([^>]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^<!-- from (\S+) -->\n!\[[^\]]*\]\(([^)]+)\)", re.MULTILINE)
NAMED = re.compile(r"# (\S+\.(?:py|yaml|toml|csv))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, span in the page, line, and the marks of the comment before it."""

    page: str
    language: str
    text: str
    span: tuple[int, int]
    line: int
    marks: tuple[str, ...] = ()

    @property
    def file(self) -> str | None:
        """The file name in the first line; None if the block isn't a file."""
        named = NAMED.match(self.text)
        return named[1] if named and self.language in ("python", "yaml", "toml", "csv") else None

    @property
    def body(self) -> str:
        """The text without the line of the file name."""
        return self.text.split("\n", 1)[1] if self.file else self.text

    @property
    def slow(self) -> bool:
        """Whether its commands take long, so that quick tests leave them out."""
        return "slow" in self.marks

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, match[2], match[3], match.span(3), text.count("\n", 0, match.start(3)),
              tuple(mark.strip() for mark in (match[1] or "").split(",") if mark.strip()))
        for match in BLOCK.finditer(text)
    ]  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture of a page, and the file that the page's commands write and that it is made from."""

    page: str
    source: str
    file: Path


def pictures(page: str) -> list[Picture]:
    """The pictures of a page that its commands make."""
    path = ROOT / page
    found = PICTURE.finditer(path.read_text(encoding="utf-8"))
    return [Picture(page, match[1], (path.parent / match[2]).resolve()) for match in found]


def write_package(folder: Path) -> None:
    """Write the files of all pages and the dist-info of their package; ``folder`` then works from the path.

    The installation has the entry points of all pages.  One page's ``pyproject.toml`` has the project's name; those of
    others hold the entry points that they add to it.
    """
    points: dict[str, dict[str, str]] = {}
    projects = []
    for block in (block for page in EXAMPLES for block in blocks(page) if block.file):
        if block.file == "pyproject.toml":
            projects.append(tomllib.loads(block.body)["project"])
            for group, named in projects[-1]["entry-points"].items():
                points.setdefault(group, {}).update(named)
            continue
        path = folder / str(block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != block.body:
            raise AssertionError(f"{block}: {block.file} differs between pages")
        path.write_text(block.body, encoding="utf-8")
    (project,) = {(p["name"], p["version"]) for p in projects if "name" in p}
    info = folder / f"{project[0]}-{project[1]}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(*project))
    lines = []
    for group, named in points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in named.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


@dataclass
class Shelf:
    """A folder in which pages run one after the other; a command on several pages runs once."""

    folder: Path
    typed: dict[str, str] = field(default_factory=dict)

    def read(self, page: str, *, slow: bool) -> Iterator[tuple[Block, str]]:
        """Run a page; yields each ``text`` block with the actual output.  Raises AssertionError."""
        names: dict[str, Any] = {"__name__": "page"}
        printed, skipped = "", False
        read = blocks(page)
        with chdir(self.folder), _forgotten(), _profiles_as_installed(self.folder, read):
            for block in read:
                if block.language == "text":
                    if not skipped:
                        yield block, printed
                    continue
                skipped = block.slow and not slow
                if not skipped and not block.file:
                    printed = self._do(block, names)

    def _do(self, block: Block, names: dict[str, Any]) -> str:
        if block.language == "sh":
            commands = block.text.replace("\\\n", " ").splitlines()
            return "".join(self._type(block, line) for line in commands if shlex.split(line, comments=True))
        if block.language == "python":
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
                exec(compile(block.text, str(block), "exec"), names)
            return out.getvalue()
        if block.language == "bash":
            return ""
        if block.language == "yaml":
            _accept(block)
            return ""
        raise AssertionError(f"{block}: blocks of language {block.language!r} can't run")

    def _type(self, block: Block, line: str) -> str:
        line = re.sub(r"\s+# .*", "", line)
        if line in self.typed:
            return self.typed[line]
        words = shlex.split(line.rpartition("&& .venv/bin/")[2] if ".venv/bin/edgefl" in line else line, comments=True)
        if words[0] in ("python3", ".venv/bin/pip", "source") or words[:2] == ["pip", "install"]:
            return ""  # done by .ci/run for the README and by ``write_package`` for the examples
        ends = [int(mark.split()[1]) for mark in block.marks if mark.startswith("exit ")]
        if "interrupt" in block.marks:
            code, text = _interrupted(words)
        elif words[0] == "edgefl":
            code, text = _apart(["-m", "edgefl", *words[1:]]) if block.slow else _here(words)
        elif words[0] == "python" and words[1].startswith("tools/"):
            code, text = _apart([str(ROOT / words[1]), *words[2:]])
        elif words[0] == "python" and words[1].endswith(".py"):
            code, text = _script(words[1])
        else:
            raise AssertionError(f"{block}: command {line!r} is not supported")
        assert code == (ends[0] if ends else 0), f"{block}: {line}: exit code {code}\n{text}"
        self.typed[line] = text = text.replace(str(self.folder), HOME)
        return text


@contextmanager
def _forgotten() -> Iterator[None]:
    """Forget what a page registers, once it is read: other pages list the parts that there are."""
    from edgefl import registry
    from edgefl.registry import registered

    known = dict(registered.PARTS)
    try:
        yield
    finally:
        if known != registered.PARTS:
            registered.PARTS.clear()
            registered.PARTS.update(known)
            registry.forget()


@contextmanager
def _profiles_as_installed(folder: Path, read: list[Block]) -> Iterator[None]:
    """Hide the packages' devices on a page that installs none: its reader has those of edgefl alone."""
    from edgefl import registry

    if any('entry-points."edgefl.profiles"' in block.text for block in read):
        yield
        return
    lists = {path: path.read_text(encoding="utf-8") for path in folder.glob("*.dist-info/entry_points.txt")}
    try:
        for path, text in lists.items():
            path.write_text(
                re.sub(r"^\[edgefl\.profiles\]\n(?:[^\[\n].*\n?)*", "", text, flags=re.MULTILINE), encoding="utf-8"
            )
        registry.forget()
        yield
    finally:
        for path, text in lists.items():
            path.write_text(text, encoding="utf-8")
        registry.forget()


def _here(words: list[str]) -> tuple[int, str]:
    from edgefl.console import main

    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main(words[1:])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue() + _messages(err.getvalue())


def _apart(words: list[str]) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + _messages(done.stderr)


def _interrupted(words: list[str]) -> tuple[int, str]:
    """Interrupt the command, like Ctrl-C, once two rounds are written."""
    table = Path(words[words.index("-o") + 1]) / "rounds.jsonl"
    command = [sys.executable, "-m", "edgefl", *words[1:]]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    )
    while process.poll() is None and not (table.exists() and table.read_text().count("\n") >= 2):
        time.sleep(0.02)
    while True:
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=20)
            return process.returncode, out + _messages(err)
        except subprocess.TimeoutExpired:  # Python drops an interrupt during garbage collection
            continue


def _heed_interrupts() -> None:
    """Restore the handler of SIGINT, which a shell's background jobs and their children ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _script(path: str) -> tuple[int, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        runpy.run_path(path, run_name="__main__")
    return 0, out.getvalue()


def _messages(stderr: str) -> str:
    """Messages of edgefl on stderr, without progress and the folder of a run."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("edgefl: ") and "records, weights" not in line)


def _accept(block: Block) -> None:
    import yaml

    from edgefl.scenario import load

    sections = yaml.safe_load(block.text)
    whole = {"model": {"image": {"tower": "vit"}, "text": {"tower": "transformer"}}}
    try:
        load({**whole, **sections})
    except Exception as error:
        raise AssertionError(f"{block}: {error}") from error
