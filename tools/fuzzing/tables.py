"""Hostile data files: availability traces, tables of samples, and folders in the published formats of data sets."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzzing.case import Case
from fuzzing.scenarios import TINY, dumped
from fuzzing.texts import odd_files, rewritten
from fuzzing.values import hostile

ROOT = Path(__file__).resolve().parents[2]

TIMES: tuple[Any, ...] = (
    0, 10, 3600, "2 h", "1 min", -5, 1e18, "1e300", "nan", "inf", "", None, True, [], {"a": 1}, "9" * 5000, 10**40,
)  # fmt: skip


def trace_scenario(file: str) -> bytes:
    """A scenario whose clients are available as the trace says."""
    return dumped({**TINY,
                   "fleet": {"availability": {"trace": {"file": file}}}})  # fmt: skip


@st.composite
def traces(draw: st.DrawFn) -> Case:
    """A trace from generated rows, or a good one with its bytes changed, in CSV or JSON Lines."""
    suffix = draw(st.sampled_from(("csv", "jsonl")))
    good = [(device, 100.0 * i, 100.0 * i + 40) for device in ("a", "b", "c") for i in range(4)]
    how = draw(st.sampled_from(("rows", "text", "text", "odd")))
    if how == "odd":
        content: Any = draw(odd_files)
    elif how == "text":
        content = draw(rewritten(_rows(suffix, good)))
    else:
        times = st.one_of(st.sampled_from(TIMES), st.floats(0, 1e6), hostile)
        content = _rows(suffix, draw(st.lists(st.tuples(st.sampled_from(("a", "b", 1, "", None)), times, times),
                                              max_size=5)))  # fmt: skip
    name = f"trace.{suffix}"
    return Case("traces", {name: content, "scenario.yaml": trace_scenario(name)}, (name,))


def _rows(suffix: str, rows: list[Any]) -> bytes:
    if suffix == "csv":
        text = "device,start,end\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    else:
        text = "".join(json.dumps(dict(zip(("device", "start", "end"), row, strict=True))) + "\n" for row in rows)
    return text.encode("utf-8", "surrogatepass")


Source = tuple[str, dict[str, Any], dict[str, bytes], tuple[str, ...]]


@cache
def sources() -> list[Source]:
    """For each format: name, the scenario's data section, the files, and those of them that are changed."""
    sys.path.append(str(ROOT / "tests" / "toys"))
    import miniatures

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = [["text", "label", "client"], *([f"word{i} again {i % 3}", i % 3, i % 4] for i in range(60))]
        miniatures.table(folder / "table" / "data.csv", rows)
        miniatures.write(
            folder / "lines" / "data.jsonl",
            "".join(json.dumps({"text": f"word{i} more", "label": str(i % 3)}) + "\n" for i in range(60)),
        )
        pictures = [["image", "label"], *([f"{i}.jpg", f"{i % 2}"] for i in range(40))]
        miniatures.table(folder / "pictures" / "data.csv", pictures)
        for i in range(40):
            miniatures.write(folder / "pictures" / f"{i}.jpg", miniatures.picture(i))
        miniatures.ag_news(folder / "ag-news")
        miniatures.mtsamples(folder / "mtsamples")
        miniatures.coco(folder / "coco")
        miniatures.vqa(folder / "vqa")
        miniatures.cifar100(folder / "cifar100")
        miniatures.medmnist(folder / "organamnist" / "organamnist.npz")
        return [
            _source(folder, "table", "table", "text", "data.csv"),
            _source(folder, "table", "lines", "text", "data.jsonl"),
            _source(folder, "table", "pictures", "image", "data.csv", "0.jpg"),
            _source(folder, "ag-news", "ag-news", "text", "train.csv", "test.csv"),
            _source(folder, "mtsamples", "mtsamples", "text", "mtsamples.csv"),
            _source(folder, "coco", "coco", "image-text", "annotations/captions_train2017.json",
                    "train2017/000000000100.jpg"),
            _source(folder, "vqa", "vqa", "image-text", "v2_mscoco_train2014_annotations.json",
                    "v2_OpenEnded_mscoco_train2014_questions.json"),
            _source(folder, "cifar100", "cifar100", "image", "cifar-100-binary/train.bin",
                    "cifar-100-binary/fine_label_names.txt"),
            _source(folder, "organamnist", "organamnist", "image", "organamnist.npz"),
        ]  # fmt: skip


def _source(folder: Path, source: str, name: str, kind: str, *changed: str) -> Source:
    files = {f"data/{path.relative_to(folder / name)}": path.read_bytes()
             for path in sorted((folder / name).rglob("*")) if path.is_file()}  # fmt: skip
    section = {"source": source, "folders": {source: "./data"}, "clients": {kind: 2}, "partition": "iid", "samples": 8,
               "validation": 4, "test": 4}  # fmt: skip
    return name, section, files, tuple(f"data/{each}" for each in changed)


def tables() -> st.SearchStrategy[Case]:
    """Folders of data sets; the good ones that they come from are made first."""
    sources()
    return _tables()


@st.composite
def _tables(draw: st.DrawFn) -> Case:
    """A data set's folder in which one file was changed, and a scenario that reads it."""
    _, section, files, changed = draw(st.sampled_from(sources()))
    name = draw(st.sampled_from(changed))
    content: Any = draw(odd_files) if draw(st.integers(0, 9)) == 0 else draw(rewritten(files[name]))
    return Case("tables", {**files, name: content, "scenario.yaml": dumped({**TINY, "data": section})}, (name,))
