"""The tests of a change, nearest first: what the edit loop runs.

    python tools/test.py [PATH ...] [pytest's arguments]
    python tools/test.py                                   # files that differ from the merge base with main
    python tools/test.py edgefl/commands/sweep -x -k page  # one room, and pytest's own arguments

For a file of edgefl/ these are the tests that mirror it, those that use it, and those that mirror the modules that use
it; for a command or what all commands share, tests of the command line too.  A name that a package hands on is used
where it is defined, not in the package.  Of many users the nearest are run: the whole suite, `python -m pytest`, is for
before a push.  Exit code: pytest's.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
COMMAND_LINE = "tests/console/test_cli.py"
"""What a command prints as it is typed; the other tests of the command line take as long as a room."""
MOST = 8
"""Files that use what changed and are run: half a minute; those of more are left to the whole suite."""
TOLD = 4
"""Files of each reason that are named; one more line says how many others there are."""
READERS = {
    "profiles": "tests/devices",
    "scenarios": "tests/scenario",
    "docs": "tests/docs",
    "tools/pages": "tests/docs",
}
"""Tests of what reads a folder that no folder of tests/ mirrors."""


@dataclass
class Chosen:
    """Paths of tests with the reason for each, in the order in which they were found."""

    reasons: dict[str, str] = field(default_factory=dict)
    untested: list[str] = field(default_factory=list)
    left: int = 0

    def has(self, path: str) -> bool:
        """Whether a file or folder, or a folder above it, is there."""
        return any(above.as_posix() in self.reasons for above in (Path(path), *Path(path).parents))

    def add(self, path: str, reason: str) -> None:
        """Take a file or folder, unless a folder above it is there."""
        if not self.has(path):
            for below in [each for each in self.reasons if each.startswith(f"{path}/")]:
                del self.reasons[below]
            self.reasons[path] = reason

    def lines(self) -> Iterator[str]:
        """What runs and why, in a few lines."""
        groups = defaultdict(list)
        for path, reason in self.reasons.items():
            groups[reason].append(path)
        for reason, paths in groups.items():
            more = f" and {len(paths) - TOLD} more" if len(paths) > TOLD else ""
            yield f"{reason}: {' '.join(paths[:TOLD])}{more}"
        if self.untested:
            more = f" and {len(self.untested) - TOLD} more" if len(self.untested) > TOLD else ""
            yield f"no tests of their own: {' '.join(self.untested[:TOLD])}{more}"
        if self.left > 0:
            yield f"left to the whole suite: {self.left} more files that use what changed"


@dataclass(frozen=True)
class Uses:
    """Which modules of edgefl each of its modules and each test file uses."""

    of_modules: Mapping[str, frozenset[str]]
    of_tests: Mapping[str, frozenset[str]]

    def tests(self, module: str) -> list[str]:
        """The test files that use a module, by their paths."""
        return sorted(path for path, used in self.of_tests.items() if module in used)

    def modules(self, module: str) -> list[str]:
        """The modules that use one."""
        return sorted(user for user, used in self.of_modules.items() if module in used and user != module)


def main(arguments: list[str]) -> int:
    """Run the tests of the paths, or of what changed."""
    first = next((i for i, word in enumerate(arguments) if not (ROOT / word).exists()), len(arguments))
    asked, others = arguments[:first], arguments[first:]
    chosen = choose(asked or changed())
    for line in chosen.lines():
        print(line, flush=True)
    if not chosen.reasons:
        print("nothing to run")
        return 0
    return subprocess.call([sys.executable, "-m", "pytest", "-q", *chosen.reasons, *others], cwd=ROOT)


def changed() -> list[str]:
    """Files that differ from the merge base with main, or from HEAD where main is unknown, and untracked ones."""
    base = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    return sorted({*_git("diff", "--name-only", base[0]), *_git("ls-files", "--others", "--exclude-standard")})


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def choose(paths: Iterable[str]) -> Chosen:
    """The tests of files and folders, given from the root of the checkout."""
    chosen = Chosen()
    modules = []
    for path in dict.fromkeys(Path(path).as_posix() for path in paths):
        if path.startswith("edgefl"):
            modules += [each for each in _files(path) if each.endswith(".py")]
            if (ROOT / path).is_dir():
                _choose_folder(Path(path), chosen)
        elif path.startswith("tests"):
            _choose_tests(path, chosen)
        else:
            _choose_elsewhere(path, chosen)
    for path in modules:
        _choose_mirror(path, chosen)
    if modules:
        _choose_users(map(_module, modules), chosen)
    if any(path.startswith("edgefl/commands") for path in modules):
        chosen.add(COMMAND_LINE, "the command line")
    return chosen


def _files(path: str) -> list[str]:
    """The tracked and new files of a folder; of a file itself, also one that was deleted."""
    if (ROOT / path).is_dir():
        return _git("ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", path)
    return [path]


def _choose_tests(path: str, chosen: Chosen) -> None:
    place = Path(path)
    if (ROOT / path).is_dir() and path != "tests" or place.match("test_*.py") and (ROOT / path).exists():
        chosen.add(path, "asked for, or changed")
    elif len(place.parts) > 2 and place.parts[1] not in ("toys", "plugin") and (ROOT / place.parent).is_dir():
        chosen.add(place.parent.as_posix(), "beside a changed file")
    else:
        chosen.untested.append(path)


def _choose_elsewhere(path: str, chosen: Chosen) -> None:
    place = Path(path)
    tests = f"tests/tools/test_{place.stem}.py"
    if place.parts[0] == "tools" and (ROOT / tests).exists():
        chosen.add(tests, "of a tool")
    else:
        folder = next((tests for above, tests in READERS.items() if path.startswith(f"{above}/")), None)
        chosen.add(folder, "read a changed file") if folder else chosen.untested.append(path)


def _choose_mirror(path: str, chosen: Chosen) -> None:
    """The test file that mirrors a module; in a command's folder, and for one that no test uses, the folder."""
    place, own = Path(path), _mirror(_module(path))
    if place.parts[1] != "commands" or len(place.parts) == 3:
        if (ROOT / own).exists():
            chosen.add(own, "mirror a changed file")
        if (ROOT / own).exists() or uses_of_checkout().tests(_module(path)):
            return
    if not _choose_folder(place.parent, chosen):
        chosen.untested.append(path)


def _choose_folder(place: Path, chosen: Chosen) -> bool:
    """The folder that mirrors one of edgefl/, or the nearest above it, but not all tests or those of all commands."""
    folder = Path("tests", *place.parts[1:])
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    found = folder not in (Path("tests"), Path("tests/commands"))
    if found:
        chosen.add(folder.as_posix(), "mirror a changed folder")
    return found


def _mirror(module: str) -> str:
    """The path that the tests of a module have, if it has some of its own."""
    *folders, name = module.split(".")[1:]
    return Path("tests", *folders, f"test_{name}.py").as_posix()


def _choose_users(changed: Iterable[str], chosen: Chosen) -> None:
    """Test files that use what changed, or mirror what uses it: those of its room first, then those that use most."""
    uses, counts, rooms = uses_of_checkout(), Counter[str](), set()
    for module in changed:
        mirrors = {_mirror(user) for user in uses.modules(module)}
        counts.update({*uses.tests(module), *(path for path in mirrors if (ROOT / path).exists())})
        rooms.add(Path(_mirror(module)).parent)
    users = [path for path in counts if not chosen.has(path)]
    users.sort(key=lambda path: (Path(path).parent not in rooms, -counts[path], path))
    for path in users[:MOST]:
        chosen.add(path, "use what changed, or mirror what does")
    chosen.left = len(users) - MOST


@cache
def uses_of_checkout() -> Uses:
    """Read the imports of edgefl/ and tests/; it takes about two seconds."""
    modules = grimp.build_graph("edgefl", cache_dir=None).modules
    sources = {module: _source(module) for module in modules}
    read = {module: list(_imports(path)) for module, path in sources.items()}
    handed = {
        (module, name): of
        for module, path in sources.items()
        if path.name == "__init__.py"
        for of, name in read[module]
        if name
    }

    def used(imports: Iterable[tuple[str, str]]) -> frozenset[str]:
        return frozenset(_defined(of, name, handed, modules) for of, name in imports) & modules

    return Uses(
        {module: used(imports) for module, imports in read.items() if sources[module].name != "__init__.py"},
        {
            path.relative_to(ROOT).as_posix(): used(_imports(path))
            for path in sorted((ROOT / "tests").rglob("test_*.py"))
        },
    )


def _source(module: str) -> Path:
    place = ROOT.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _module(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of a module of edgefl and a name of it, empty for the module itself, that a file imports or says."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((each.name, "") for each in names if each.name.startswith("edgefl."))
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] == "edgefl":
                yield from ((module, each.name) for each in node.names)
            case ast.Attribute(value=ast.Name(id="edgefl")):
                yield "edgefl", node.attr


def _defined(module: str, name: str, handed: Mapping[tuple[str, str], str], modules: Iterable[str]) -> str:
    """The module that a name is from: a package hands on what its other modules define."""
    if f"{module}.{name}" in modules:
        return f"{module}.{name}"
    of = handed.get((module, name), module)
    return module if of == module else _defined(of, name, handed, modules)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
