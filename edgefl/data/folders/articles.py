"""Texts with one class each: AG News, Medical Abstracts, and MTSamples' medical transcriptions.

A text is read whole, as the papers have it: no word is masked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderSet, Wanted
from edgefl.data.folders.arrow import hub_tables
from edgefl.data.folders.places import Published, left_out, located
from edgefl.data.folders.rows import class_number, lines, named_rows, numbered_in_order, rows
from edgefl.errors import DataError

AG_NEWS = Published(
    "ag-news",
    "train.csv and test.csv with class, title, description in each row, or parquet files",
    'https://huggingface.co/datasets/fancyzhx/ag_news, or python -c "from datasets import load_dataset; '
    "load_dataset('fancyzhx/ag_news').save_to_disk('data/ag-news')\"",
)
MEDICAL_ABSTRACTS = Published(
    "medical-abstracts",
    "medical_tc_train.csv and medical_tc_test.csv with condition_label and medical_abstract",
    "https://github.com/sebischair/Medical-Abstracts-TC-Corpus",
)
MTSAMPLES = Published(
    "mtsamples",
    "mtsamples.csv with medical_specialty and transcription",
    "https://www.kaggle.com/datasets/tboyle10/medicaltranscriptions",
)
NEWS: tuple[str, ...] = ("World", "Sports", "Business", "Sci/Tech")
CONDITIONS: tuple[str, ...] = (
    "neoplasms",
    "digestive system diseases",
    "nervous system diseases",
    "cardiovascular diseases",
    "general pathological conditions",
)

Found = list[tuple[str, int, int]]
"""Text, class, official split of each sample."""


def ag_news(wanted: Wanted) -> Collection:
    """120,000 and 7,600 news of four classes, title and description one after the other."""
    place = located(wanted.folder, "train.csv", "test.csv")
    found: Found = []
    if place is None:
        tables = hub_tables(wanted.folder, AG_NEWS.name)
        if not tables:
            raise AG_NEWS.wrong(wanted.folder)
        for split, table in tables.items():
            for at, (text, label) in enumerate(zip(table.column("text"), table.column("label"), strict=True)):
                where = f"{table.files[0]}: row {at}"
                found.append((str(text or "").strip(), class_number(str(label), len(NEWS), where), split))
        return _collected(AG_NEWS, NEWS, found, wanted)
    classes = NEWS
    if (place / "classes.txt").is_file():
        classes = tuple(name for line in lines(place / "classes.txt") if (name := line.strip()))
    for split, name in ((0, "train.csv"), (2, "test.csv")):
        first = True
        for line, row in rows(place / name):
            header, first = first and not row[0].strip().isdecimal(), False
            if header and row[0].strip().lower() in ("class index", "class", "label"):
                continue
            if len(row) < 3:
                raise DataError(f"{place / name}:{line}: {len(row)} fields; class, title and description are expected")
            label = class_number(row[0], len(classes), f"{place / name}:{line}", first=1)
            found.append((" ".join(part.strip() for part in row[1:] if part.strip()), label, split))
    return _collected(AG_NEWS, classes, found, wanted)


def medical_abstracts(wanted: Wanted) -> Collection:
    """11,550 and 2,888 abstracts on five kinds of conditions."""
    files = ("medical_tc_train.csv", "medical_tc_test.csv")
    place = located(wanted.folder, *files)
    if place is None:
        raise MEDICAL_ABSTRACTS.wrong(wanted.folder)
    classes = CONDITIONS
    if (names := place / "medical_tc_labels.csv").is_file():
        said = [(row["condition_label"], row["condition_name"])
                for _, row in named_rows(names, ("condition_label", "condition_name"))]  # fmt: skip
        if [number.strip() for number, _ in said] != [str(i + 1) for i in range(len(said))]:
            raise DataError(f"{names}: condition_label must count 1, 2, 3, ...")
        classes = tuple(name.strip() for _, name in said)
    found: Found = []
    for split, name in zip((0, 2), files, strict=True):
        for line, row in named_rows(place / name, ("condition_label", "medical_abstract")):
            label = class_number(row["condition_label"], len(classes), f"{place / name}:{line}", first=1)
            found.append((row["medical_abstract"].strip(), label, split))
    return _collected(MEDICAL_ABSTRACTS, classes, found, wanted)


def mtsamples(wanted: Wanted) -> Collection:
    """About 5,000 transcriptions of 40 specialties; there is no published split.

    Many stand in it twice, under two specialties: copies are held out together.
    """
    place = located(wanted.folder, "mtsamples.csv")
    if place is None:
        raise MTSAMPLES.wrong(wanted.folder)
    path: Path = place / "mtsamples.csv"
    samples = [
        (row["transcription"].strip(), row["medical_specialty"].strip())
        for _, row in named_rows(path, ("medical_specialty", "transcription"))
    ]
    classes = tuple(sorted({specialty for _, specialty in samples if specialty}))
    number = {specialty: index for index, specialty in enumerate(classes)}
    unknown = sum(not specialty for _, specialty in samples)
    left_out(wanted.on_message, MTSAMPLES.name, {"without a specialty": unknown}, len(samples))
    found = [(text, number[specialty], -1) for text, specialty in samples if specialty]
    return _collected(MTSAMPLES, classes, found, wanted)


def _collected(published: Published, classes: tuple[str, ...], found: Found, wanted: Wanted) -> Collection:
    kept = [sample for sample in found if sample[0]]
    left_out(wanted.on_message, published.name, {"without a text": len(found) - len(kept)}, len(found))
    if not kept:
        raise DataError(f"{published.name}: there is no text in {wanted.folder}")
    texts = tuple(text for text, _, _ in kept)
    label, split = (np.array(values, np.int64) for values in list(zip(*kept, strict=True))[1:])
    # equal texts are held out together, within their published split
    group = numbered_in_order(list(zip(texts, split.tolist(), strict=True)))
    official = split if split.min() >= 0 else None
    return Collection(classes, label, group, None, np.arange(len(texts)), texts, texts, official=official)


AG_NEWS_SET = FolderSet(ag_news, AG_NEWS.find)
MEDICAL_ABSTRACTS_SET = FolderSet(medical_abstracts, MEDICAL_ABSTRACTS.find)
MTSAMPLES_SET = FolderSet(mtsamples, MTSAMPLES.find)
