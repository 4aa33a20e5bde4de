"""The kinds of attack: each draws a case, does it to commands of edgefl, and notes what didn't hold."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import psutil

from attacking.starts import Bench, Ended, Reference, Refused, Started
from attacking.subjects import COSTLY, ON_RAY, SUBJECTS, drawn
from attacking.witness import differences, documented, faults_of_output, processes

SHARE_OF_PROCESSES = 0.15
"""Commands that are processes of their own instead of forks of the warm one."""
EARLY = 0.2
"""Chains whose first kill comes before scenario.yaml is whole."""
DRAWN = 0.25
"""Chains of a drawn method, schedule and policy."""
SLOWER = 4.0
"""Seconds that a process of its own takes longer than a fork."""


class Case:
    """A drawn case: its folder, what was done (``story``), and what didn't hold (``faults``)."""

    def __init__(self, bench: Bench, folder: Path, random: Random) -> None:
        self.bench, self.folder, self.random = bench, folder, random
        self.here, self.out = folder / "here", "out"
        self.story: list[str] = []
        self.faults: list[str] = []
        self.name, self.subject = "", next(iter(SUBJECTS.values()))

    def choose(self, *names: str, **sections: Any) -> Reference:
        """Draw a subject among ``names``, write its scenario and return its uninterrupted run."""
        self.name = self.random.choice(names or [name for name in SUBJECTS for _ in range(1 if name in COSTLY else 3)])
        self.subject = SUBJECTS[self.name]
        self.story.append(self.name)
        self.here.mkdir(parents=True)
        (self.here / "scenario.yaml").write_text(json.dumps({**self.subject.scenario, **sections}))
        return self.bench.reference(self.name)

    def draw(self) -> Reference:
        """Draw a method, schedule and policy that go together, and return the uninterrupted run."""
        for turn in count():
            self.subject = drawn(self.random, self.bench.methods())
            try:
                whole = self.bench.uninterrupted(self.folder / f"whole-{turn}", self.subject)
            except Refused:
                continue
            self.story.append(", ".join(str(self.subject.scenario[name]) for name in ("method", "schedule", "round")))
            self.here.mkdir(parents=True)
            (self.here / "scenario.yaml").write_text(json.dumps(self.subject.scenario))
            return whole
        raise AssertionError

    def begin(self, arguments: list[str], **how: Any) -> Started:
        """Start a command, a process of its own in a drawn share of the cases."""
        if how.get("at") is None:
            how.setdefault("warm", self.random.random() >= SHARE_OF_PROCESSES)
        return self.bench.start(self.folder, arguments, watched=self.out, **how)

    def end(self, started: Started, what: str, *, killed: bool = False, codes: tuple[int, ...] = ()) -> Ended:
        """Wait for a command and hold its end against the facts; ``codes`` are the only ones that may be."""
        ended = started.wait()
        self.story.append(f"{what}: {ended.code}")
        wrong = []
        if ended.code is None:
            wrong.append("hangs")
        elif not (killed and ended.code in (-signal.SIGKILL, -signal.SIGXFSZ)):
            if ended.code not in (codes or documented()):
                wrong.append(f"exit code {ended.code}")
            elif (
                ended.code not in (0, 1)
                and len([line for line in ended.stderr.splitlines() if "edgefl: error" in line]) > 1
            ):
                wrong.append("several errors")
        wrong += faults_of_output(ended.stdout, ended.stderr)
        if ended.left:
            wrong.append(f"processes are left: {ended.left[:2]}")
        wrong += [f"outside the folder: {path.name}" for path in self._strays(started, ended)]
        shutil.rmtree(started.temporary, ignore_errors=True)
        last = ended.stderr.strip().splitlines()[-1:] if wrong else []
        self.faults += [f"{what}: {each}" + (f" ({last[0][:160]})" if last else "") for each in wrong]
        return ended

    def _strays(self, started: Started, ended: Ended) -> Iterator[Path]:
        """What lies where nothing should."""
        allowed = {"scenario.yaml", Path(self.out).parts[0], "more"}
        yield from (path for path in self.here.iterdir() if path.name not in allowed)
        yield from (path for path in (self.folder / "home").iterdir() if path.name != ".ray")
        if ended.code is not None and ended.code >= 0:
            yield from (path for path in started.temporary.iterdir() if not path.name.startswith("torchinductor_"))

    def finish(self, expected: Mapping[str, bytes], but: tuple[str, ...] = (), **how: Any) -> None:
        """Go on as a user would: resume, begin anew where that is refused; and compare the end."""
        sets = how.pop("sets", [])
        ended = self.end(self.begin([*self.subject.resume(self.out), *sets], **how), "resume", codes=(0, 2))
        if ended.code == 2:
            again = self.end(self.begin(self.subject.start(self.out), **how), "start anew", codes=(0,))
            if again.code != 0:
                self.faults.append(f"neither resumed nor begun anew: {ended.stderr.strip()[-200:]}")
        if not self.faults:
            self.faults += differences(expected, self.here / self.out, but)[:5]
        if not self.faults and not self.subject.repeats and self.random.random() < 0.2:
            self.end(self.begin(["run", "--resume", self.out, "--verify"]), "verify", codes=(0,))


def kills(case: Case) -> None:
    """A start and resumes that are killed at drawn moments, and an end."""
    random = case.random
    whole = case.draw() if random.random() < DRAWN else case.choose()
    before = next((i for i, line in enumerate(whole.changes, 1) if line.endswith("scenario.yaml")), 2)
    for turn in range(random.choice((1, 1, 2, 3))):
        how: dict[str, Any] = {}
        seconds, what = None, random.choice(("change", "change", "time", "byte"))
        if turn == 0 and random.random() < EARLY:
            how["at"] = random.randint(1, before)
        elif what == "change":
            how["at"] = random.randint(1, len(whole.changes) + 3)
        elif what == "byte":
            how |= {"fsize": random.randint(200, whole.largest), "fatal": True, "warm": True}
        else:
            how["warm"] = random.random() >= 2 * SHARE_OF_PROCESSES
            seconds = random.random() * (whole.seconds + (0 if how["warm"] else SLOWER))
        begun = (case.here / case.out / "scenario.yaml").exists() or turn and case.subject.repeats
        started = case.begin(case.subject.resume(case.out) if begun else case.subject.start(case.out), **how)
        if seconds is not None:
            started.after(seconds)
            started.signal(signal.SIGKILL)
        shown = how.get("at") or how.get("fsize") or f"{seconds:.2f} s"
        ended = case.end(started, f"{'resume' if begun else 'start'} killed at {shown}", killed=True)
        if ended.code == 0 or case.faults:
            break
    if not case.faults:
        case.finish(whole.contents)


@contextmanager
def _disk(case: Case, size: int) -> Iterator[Callable[[int], None]]:
    """A file system of so many bytes at ``here/disk``; yields what changes its size."""
    disk = case.here / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        yield lambda to: subprocess.run(["mount", "-o", f"remount,size={to}", str(disk)], check=True) and None
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def disks(case: Case) -> None:
    """A disk that is full at a drawn byte, once or twice, and then has room; or an answer that finds no room."""
    random, whole = case.random, case.choose()
    if random.random() < 0.2:
        _no_room(case, whole)
        return
    sizes = sorted(random.uniform(0.02, 1.1) for _ in range(random.choice((1, 1, 2))))
    if os.geteuid() == 0 and random.random() < 0.7:
        case.out = "disk/out"
        with _disk(case, 4096) as resize:
            for turn, share in enumerate(sizes):
                resize(int(share * whole.bytes))
                if _filled(case, turn, f"{int(share * whole.bytes)} B of disk"):
                    break
            resize(2**28)
            if not case.faults:
                case.finish(whole.contents)
        return
    for turn, share in enumerate(sizes):
        most = max(2000, int(share * whole.largest))
        if _filled(case, turn, f"{most} B a file", fsize=most):
            break
    if not case.faults:
        case.finish(whole.contents)


def _filled(case: Case, turn: int, what: str, **how: Any) -> bool:
    """Start or go on without room; whether that is the end of the attempts."""
    begun = (case.here / case.out / "scenario.yaml").exists() or turn and case.subject.repeats
    arguments = case.subject.resume(case.out) if begun else case.subject.start(case.out)
    return case.end(case.begin(arguments, **how), f"with {what}").code == 0 or bool(case.faults)


def _no_room(case: Case, whole: Reference) -> None:
    """Commands that write an answer of a finished run where there is no room."""
    random = case.random
    shutil.copytree(whole.folder, case.here / "out")
    one = str(min((case.here / case.out).rglob("models.json")).parent.relative_to(case.here))  # of several the first
    printing = (["compare", one], ["compare", one, "--as", "csv"], ["compare", one, "--as", "json"], ["parts"],
                ["explain", one, "--round", "1"], ["devices"],
                ["profile", "scenario.yaml", "--set", "compare=null"])  # fmt: skip
    writing = (["export", one, "--to", "csv", "-o"], ["export", one, "--to", "tensorboard", "-o"],
               ["export", one, "--to", "parquet", "-o"], ["report", one, "-o"],
               ["export", one, "--to", "figures", "-o"], ["export", one, "--to", "perfetto", "-o"],
               ["new"])  # fmt: skip
    if random.random() < 0.5:
        arguments = random.choice(printing)
        ended = case.end(case.begin(arguments, stdout="/dev/full"), f"{' '.join(arguments)} > /dev/full", codes=(1, 2))
    else:
        arguments = random.choice(writing)
        arguments = [*arguments, "more/a.html" if arguments[0] == "report" else "more/a"]
        (case.here / "more").mkdir()
        most = random.randint(1, 3000)
        ended = case.end(case.begin(arguments, fsize=most), f"{' '.join(arguments)} with {most} B a file")
    if ended.code in (1, 2) and "edgefl: " not in ended.stderr:
        case.faults.append(f"{case.story[-1]}: no line says why")


def caches(case: Case) -> None:
    """Files of the cache that are damaged, cut, missing or others; or a cache whose building was killed."""
    random, whole = case.random, case.choose("end-to-end", "layerwise", "kept", "asynchronous")
    cache = case.folder / "cache"
    if random.random() < 0.15:
        started = case.begin(case.subject.start(case.out), cache=cache)
        started.after(random.uniform(0.2, 8.0))
        started.signal(signal.SIGKILL)
        case.end(started, "killed while the cache is built", killed=True)
        shutil.rmtree(case.here / case.out, ignore_errors=True)
    else:
        shutil.copytree(case.bench.cache, cache)
        files = sorted(path for path in cache.rglob("*") if path.is_file())
        for _ in range(random.choice((1, 1, 2, 4))):
            _damage(case, random.choice(files), files)
    for turn in ("with that cache", "again"):
        ended = case.end(case.begin(case.subject.start(case.out), cache=cache), turn, codes=(0,))
        if ended.code == 0:
            case.faults += [f"{turn}: {line}" for line in differences(whole.contents, case.here / case.out)[:3]]
        if turn == "again" and "cache" in ended.stderr:
            case.faults.append(f"the cache isn't mended: {ended.stderr.strip()[-200:]}")
        if case.faults:
            break
        shutil.rmtree(case.here / case.out)


def _damage(case: Case, path: Path, files: list[Path]) -> None:
    random = case.random
    how = random.choice(("flip", "flip", "flip", "digit", "cut", "empty", "noise", "missing", "foreign"))
    case.story.append(f"{how} {path.relative_to(case.folder / 'cache')}")
    data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
    if how == "missing" or not data:
        path.unlink(missing_ok=True)
        return
    if how == "flip":
        for _ in range(random.choice((1, 8, 1000))):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif how == "digit":
        digits = [i for i, byte in enumerate(data[:100_000]) if 48 <= byte <= 57]
        for i in random.sample(digits, min(len(digits), 3)):
            data[i] = random.randint(48, 57)
    elif how == "foreign":
        data = bytearray(random.choice([each for each in files if each.is_file()]).read_bytes())
    else:
        size = {"cut": random.randrange(len(data)), "empty": 0, "noise": len(data)}[how]
        data = bytearray(random.randbytes(size)) if how == "noise" else data[:size]
    path.write_bytes(data)


def starts(case: Case) -> None:
    """Two or three commands into one folder at drawn offsets; a folder that holds a stranger's file stays as it is."""
    random, whole = case.random, case.choose()
    where = random.choice(("new", "new", "new", "killed", "empty", "linked", "stranger"))
    out = case.here / case.out
    if where in ("empty", "stranger"):
        out.mkdir()
    if where == "stranger":
        (out / "notes.txt").write_text("mine\n")
    elif where == "linked":
        (case.here / "more").mkdir()
        out.symlink_to("more")
    elif where == "killed":
        case.end(
            case.begin(case.subject.start(case.out), at=random.randint(1, len(whole.changes))), "killed", killed=True
        )
    case.story.append(where)
    commands = []
    for turn in range(random.choice((2, 2, 3))):
        begins = where != "killed" or random.random() < 0.3
        warm = random.random() >= SHARE_OF_PROCESSES
        commands.append(case.begin((case.subject.start if begins else case.subject.resume)(case.out), warm=warm))
        if turn < 2:
            pause = random.choice((0.0, random.uniform(0, 0.3), random.uniform(0, whole.seconds)))
            case.story.append(f"{pause:.3f} s")
            time.sleep(pause)
    ends = [case.end(each, f"start {i}", codes=(0, 2)) for i, each in enumerate(commands, 1)]
    if where == "stranger":
        if [path.name for path in out.rglob("*")] != ["notes.txt"] or any(end.code == 0 for end in ends):
            case.faults.append(
                f"a stranger's folder was changed: {sorted(os.listdir(out)) if out.exists() else 'gone'}"
            )
        return
    if where != "killed" and not any(end.code == 0 for end in ends):
        case.faults.append(f"none came to its end: {[end.stderr.strip()[-120:] for end in ends]}")
    if not case.faults:
        case.finish(whole.contents)


def signals(case: Case) -> None:
    """SIGINT or SIGTERM at a drawn moment, once or twice, with SIGINT ignored in half of the cases; and a resume."""
    random, whole = case.random, case.choose()
    ignored, first = random.random() < 0.5, random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGTERM))
    started = case.begin(case.subject.start(case.out), ignore_sigint=ignored)
    started.spoke()
    pause = random.uniform(0, whole.seconds)
    started.after(time.monotonic() - started.began + pause)
    came = not started.ended()
    started.signal(first)
    if twice := random.random() < 0.2:
        started.after(time.monotonic() - started.began + random.uniform(0, 0.3))
        started.signal(first)
    deaf = ignored and first == signal.SIGINT
    case.story.append(
        f"SIGINT {'ignored' if ignored else 'heard'}, {'twice ' if twice else ''}{first.name} {pause:.2f} s in"
    )
    codes = (0,) if deaf or not came else (0, 128 + first, -first)  # a shell shows the last two alike
    case.end(started, first.name, codes=codes)
    if not case.faults:
        case.finish(whole.contents)


def ray(case: Case) -> None:
    """One of Ray's own processes is killed while a run trains on Ray; the run goes on without Ray."""
    random, whole = case.random, case.choose("end-to-end", "layerwise", "kept", executor=ON_RAY)
    wanted = random.choice(("raylet", "gcs_server", "agent", "runtime_env", "log_monitor", "monitor", "ray::"))
    started = case.begin(case.subject.start(case.out), warm=False)
    while not started.ended() and not (own := _of_ray(started, wanted)) and time.monotonic() < started.began + 60:
        time.sleep(0.05)
    pause = random.choice((0.0, random.uniform(0, 4)))
    started.after(time.monotonic() - started.began + pause)
    for process in own[: random.choice((1, len(own)))] if not started.ended() else []:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    case.story.append(f"{wanted} killed after {pause:.2f} s")
    ended = case.end(started, wanted, codes=(0, 1, 2))
    if ended.code and "edgefl: error" not in ended.stderr:
        case.faults.append(f"{wanted}: no line says why it ended with {ended.code}")
    if "\\t" in ended.stderr:
        case.faults.append(f"{wanted}: an escaped tab is printed")
    if not case.faults:
        case.finish(
            whole.contents, ("scenario.yaml", "state.json"), sets=["--set", "executor={name: inline, device: cpu}"]
        )


def _of_ray(started: Started, wanted: str) -> list[psutil.Process]:
    found = []
    for process in processes(started.number, started.mark):
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if wanted in " ".join(words[:4]) and process.pid != started.number:
            found.append(process)
    return found


KINDS: dict[str, Callable[[Case], None]] = {
    "kills": kills, "disks": disks, "caches": caches, "starts": starts, "signals": signals,
} | ({"ray": ray} if find_spec("ray") else {})  # fmt: skip
