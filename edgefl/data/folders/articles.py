"""Texts with one class each: AG News, Medical Abstracts, and MTSamples' medical transcriptions.

Texts are read whole, as in the papers: no words are masked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.arrow import hub_tables
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folder_with_all, report_left_out
from edgefl.data.folders.rows import class_number, lines, named_rows, number_by_appearance, rows
from edgefl.errors import DataError

AG_NEWS = PublishedDataset(
    "ag-news",
    "train.csv and test.csv with class, title, description in each row, or parquet files",
    'https://huggingface.co/datasets/fancyzhx/ag_news, or python -c "from datasets import load_dataset; '
    "load_dataset('fancyzhx/ag_news').save_to_disk('data/ag-news')\"",
    test="published, 7,600",
    licence="for non-commercial use",
    forms=tuple(
        (PublishedFile(f"{train}", "120,000 texts"), PublishedFile(f"{test}", "7,600 texts"))
        for train, test in (
            ("train.csv", "test.csv"),
            ("*train*.parquet", "*test*.parquet"),
            ("train/*.arrow", "test/*.arrow"),
        )
    ),
)
MEDICAL_ABSTRACTS = PublishedDataset(
    "medical-abstracts",
    "medical_tc_train.csv and medical_tc_test.csv with condition_label and medical_abstract",
    "https://github.com/sebischair/Medical-Abstracts-TC-Corpus",
    test="published, 2,888",
    licence="CC BY-SA 3.0",
    forms=(
        (
            PublishedFile("medical_tc_train.csv", "11,550 texts"),
            PublishedFile("medical_tc_test.csv", "2,888 texts"),
        ),
    ),
)
MTSAMPLES = PublishedDataset(
    "mtsamples",
    "mtsamples.csv with medical_specialty and transcription",
    "https://www.kaggle.com/datasets/tboyle10/medicaltranscriptions",
    test="held out, copies of a text together",
    licence="CC0",
    forms=((PublishedFile("mtsamples.csv", "4,999 texts"),),),
)
NEWS: tuple[str, ...] = ("World", "Sports", "Business", "Sci/Tech")
CONDITIONS: tuple[str, ...] = (
    "neoplasms",
    "digestive system diseases",
    "nervous system diseases",
    "cardiovascular diseases",
    "general pathological conditions",
)

LabelledTexts = list[tuple[str, int, int]]
"""Text, class, official split of each sample."""


def ag_news(wanted: FolderRequest) -> Collection:
    """AG News: 120,000 training and 7,600 test texts in four classes; a text is the title and the description."""
    folder = folder_with_all(wanted.folder, "train.csv", "test.csv")
    labelled: LabelledTexts = []
    if folder is None:
        tables = hub_tables(wanted.folder, AG_NEWS.name)
        if not tables:
            raise AG_NEWS.content_error(wanted.folder)
        for split, table in tables.items():
            for index, (text, label) in enumerate(zip(table.column("text"), table.column("label"), strict=True)):
                where = f"{table.files[0]}: row {index}"
                labelled.append((str(text or "").strip(), class_number(str(label), len(NEWS), where), split))
        return _text_collection(AG_NEWS, NEWS, labelled, wanted)
    classes = NEWS
    if (folder / "classes.txt").is_file():
        classes = tuple(name for line in lines(folder / "classes.txt") if (name := line.strip()))
    for split, name in ((0, "train.csv"), (2, "test.csv")):
        first = True
        for line, row in rows(folder / name):
            header, first = first and not row[0].strip().isdecimal(), False
            if header and row[0].strip().lower() in ("class index", "class", "label"):
                continue
            if len(row) < 3:
                raise DataError(f"{folder / name}:{line}: {len(row)} fields; expected class, title and description")
            label = class_number(row[0], len(classes), f"{folder / name}:{line}", first=1)
            labelled.append((" ".join(part.strip() for part in row[1:] if part.strip()), label, split))
    return _text_collection(AG_NEWS, classes, labelled, wanted)


def medical_abstracts(wanted: FolderRequest) -> Collection:
    """Medical Abstracts: 11,550 training and 2,888 test texts in five classes of conditions."""
    files = ("medical_tc_train.csv", "medical_tc_test.csv")
    folder = folder_with_all(wanted.folder, *files)
    if folder is None:
        raise MEDICAL_ABSTRACTS.content_error(wanted.folder)
    classes = CONDITIONS
    if (names := folder / "medical_tc_labels.csv").is_file():
        labels = [(row["condition_label"], row["condition_name"])
                for _, row in named_rows(names, ("condition_label", "condition_name"))]  # fmt: skip
        if [number.strip() for number, _ in labels] != [str(i + 1) for i in range(len(labels))]:
            raise DataError(f"{names}: condition_label must count 1, 2, 3, ...")
        classes = tuple(name.strip() for _, name in labels)
    labelled: LabelledTexts = []
    for split, name in zip((0, 2), files, strict=True):
        for line, row in named_rows(folder / name, ("condition_label", "medical_abstract")):
            label = class_number(row["condition_label"], len(classes), f"{folder / name}:{line}", first=1)
            labelled.append((row["medical_abstract"].strip(), label, split))
    return _text_collection(MEDICAL_ABSTRACTS, classes, labelled, wanted)


def mtsamples(wanted: FolderRequest) -> Collection:
    """MTSamples: about 5,000 transcriptions in 40 specialties, without a published split.

    Many texts are listed under two specialties: copies are held out together.
    """
    folder = folder_with_all(wanted.folder, "mtsamples.csv")
    if folder is None:
        raise MTSAMPLES.content_error(wanted.folder)
    path: Path = folder / "mtsamples.csv"
    samples = [
        (row["transcription"].strip(), row["medical_specialty"].strip())
        for _, row in named_rows(path, ("medical_specialty", "transcription"))
    ]
    classes = tuple(sorted({specialty for _, specialty in samples if specialty}))
    number = {specialty: index for index, specialty in enumerate(classes)}
    unknown = sum(not specialty for _, specialty in samples)
    report_left_out(wanted.on_message, MTSAMPLES.name, {"without a specialty": unknown}, len(samples))
    labelled = [(text, number[specialty], -1) for text, specialty in samples if specialty]
    return _text_collection(MTSAMPLES, classes, labelled, wanted)


def _text_collection(
    published: PublishedDataset, classes: tuple[str, ...], labelled: LabelledTexts, wanted: FolderRequest
) -> Collection:
    nonempty = [sample for sample in labelled if sample[0]]
    report_left_out(wanted.on_message, published.name, {"without a text": len(labelled) - len(nonempty)}, len(labelled))
    if not nonempty:
        raise DataError(f"{published.name}: there is no text in {wanted.folder}")
    texts = tuple(text for text, _, _ in nonempty)
    label, split = (np.array(values, np.int64) for values in list(zip(*nonempty, strict=True))[1:])
    # equal texts are held out together, within their published split
    group = number_by_appearance(list(zip(texts, split.tolist(), strict=True)))
    official = split if split.min() >= 0 else None
    return Collection(classes, label, group, None, np.arange(len(texts)), texts, texts, official=official)


AG_NEWS_SET = FolderSet(ag_news, AG_NEWS.find, summary="127,600 news, 4 classes (AG_NEWS)")
MEDICAL_ABSTRACTS_SET = FolderSet(
    medical_abstracts, MEDICAL_ABSTRACTS.find, summary="14,438 medical abstracts, 5 conditions"
)
MTSAMPLES_SET = FolderSet(mtsamples, MTSAMPLES.find, summary="4,999 medical transcriptions, 40 specialties (MTSamples)")
