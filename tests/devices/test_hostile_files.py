"""Files of profiles and traces that never end, are nested without end, or are no regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgefl.devices import load_device
from edgefl.devices.availability_trace import read_trace
from edgefl.devices.browsing import describe
from edgefl.devices.profile import library_files
from edgefl.errors import DeviceError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices as files")


@pytest.mark.parametrize("name", ["pipe.yaml", "zero.yaml"])
def test_a_profile_that_is_a_pipe_or_a_device_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "pipe.yaml":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(DeviceError, match="isn't a regular file"):
        load_device(str(path))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_trace_that_is_a_pipe_is_refused(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(path := tmp_path / f"trace{suffix}")
    with pytest.raises(DeviceError, match="this trace can't be read: it isn't a regular file"):
        read_trace(str(path))


def test_deep_json_in_a_trace_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"device": 1, "start": 0, "end": 1}\n' + "[" * 100_000 + "\n")
    with pytest.raises(DeviceError, match=r"trace.jsonl:2: this line isn't JSON: it is nested too deeply"):
        read_trace(str(path))


def test_a_line_break_in_a_name_is_an_escape_in_the_message(tmp_path: Path) -> None:
    (table := tmp_path / "trace.csv").write_text('device,start,"en\nd"\n1,0,1\n')
    written = library_files("fleets")["campus"].read_text()
    (fleet := tmp_path / "fleet.yaml").write_text(written.replace("  devices:", '  "devi\\nces":'))
    for read, path in ((read_trace, table), (describe, fleet)):
        with pytest.raises(DeviceError, match=r"\\n") as caught:
            read(str(path))
        assert len(str(caught.value).splitlines()) == 1


def test_a_header_without_end_is_no_csv(tmp_path: Path) -> None:
    (path := tmp_path / "trace.csv").write_text("x" * 200_000 + "\n")
    with pytest.raises(DeviceError, match=r"trace.csv:1: this line isn't CSV: field larger than field limit"):
        read_trace(str(path))
