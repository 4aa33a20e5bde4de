"""VQAv2: questions about COCO's pictures, answered by ten people each, as visualqa.org publishes them.

The classes are the most frequent answers; an answer scores min(1, n / 3) if n people gave it.  The published validation
set is the test set here: the answers of VQAv2's own test set are secret.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderRequest, FolderSet
from edgefl.data.folders.captions import entries
from edgefl.data.folders.pictures import read_pictures
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folders, report_left_out
from edgefl.data.folders.rows import number_by_appearance, read_json
from edgefl.errors import DataError

PARTS = {"train2014": 0, "val2014": 2}
FULL = 3129
"""Answers of the full task: as many as the papers on VQAv2 have, PmcmFL among them."""

ARTICLES = frozenset({"a", "an", "the"})
NUMBERS = dict(zip("none zero one two three four five six seven eight nine ten".split(),
                   "0 0 1 2 3 4 5 6 7 8 9 10".split(), strict=True))  # fmt: skip
PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation.replace("'", "").replace(":", ""), " "))


def vqa_dataset(name: str) -> PublishedDataset:
    """The description of VQAv2 under ``name``."""
    return PublishedDataset(
        name,
        "v2_OpenEnded_mscoco_train2014_questions.json and v2_mscoco_train2014_annotations.json, the same for val2014, "
        "and COCO's folders train2014 and val2014",
        "https://visualqa.org/download.html",
        beside="vqa",
        test="the published validation questions",
        licence="questions and answers CC BY 4.0",
        forms=(
            tuple(
                file
                for part, pictures, questions in (("train2014", 82_783, 443_757), ("val2014", 40_504, 214_354))
                for file in (
                    PublishedFile(f"v2_OpenEnded_mscoco_{part}_questions.json", f"{questions:,} questions"),
                    PublishedFile(
                        f"v2_mscoco_{part}_annotations.json", f"ten answers to each of {questions:,} questions"
                    ),
                    PublishedFile(f"{part}/*.jpg", f"{pictures:,} pictures"),
                )
            ),
        ),
    )


@lru_cache(2**16)  # ten people answer each question, mostly alike
def normalise_answer(answer: str) -> str:
    """Normalise an answer for comparison: lower case, no articles and punctuation, numbers as digits."""
    text = re.sub(r"(?<=\d),(?=\d)", "", answer.lower().strip())
    text = re.sub(r"(?<!\d)\.|\.(?!\d)", "", text)
    unpunctuated = text.replace(".", "\0").translate(PUNCTUATION).replace("\0", ".")
    words = [NUMBERS.get(word, word) for word in unpunctuated.split()]
    return " ".join(word for word in words if word not in ARTICLES)


def build(entry: PublishedDataset, answers: int, wanted: FolderRequest) -> Collection:
    """Questions with at least one of the ``answers`` most frequent answers; ``label`` is the one with the best score.

    Frequency counts each question's most common answer over all questions with published answers; equally frequent
    ones are sorted by text.
    """
    questions: list[tuple[Path, str, Counter[str], int]] = []
    for part, split in PARTS.items():
        questions += _questions(entry, part, split, wanted.folder)
    if not questions:
        raise entry.content_error(wanted.folder)
    frequent = Counter(_best(given_answers) for *_, given_answers, _ in questions if given_answers)
    ordered = sorted(frequent, key=lambda answer: (-frequent[answer], answer))[:answers]
    if len(ordered) < 2:
        raise DataError(f"{entry.name}: {len(ordered)} different answers in {wanted.folder}; at least 2 are needed")
    number = {answer: index for index, answer in enumerate(ordered)}
    samples = [
        (path, question, sorted((-min(1.0, n / 3), number[a]) for a, n in given_answers.items() if a in number), split)
        for path, question, given_answers, split in questions
    ]
    counts = {"without a question": sum(not question for _, question, _, _ in samples)}
    counts[f"with none of the {len(ordered):,} answers"] = sum(bool(q) and not scored for _, q, scored, _ in samples)
    samples = [sample for sample in samples if sample[1] and sample[2]]
    paths = list(dict.fromkeys(path for path, *_ in samples))
    images, position = read_pictures(paths, wanted, entry.name)
    image = position[number_by_appearance([path for path, *_ in samples])]
    counts["without their picture"] = int((image < 0).sum())
    report_left_out(wanted.on_message, entry.name, counts, len(questions))
    samples = [sample for sample, picture in zip(samples, image.tolist(), strict=True) if picture >= 0]
    image = image[image >= 0]
    width = max(len(scored) for *_, scored, _ in samples)
    answer = np.full((len(samples), width), -1, np.int32)
    score = np.zeros((len(samples), width), np.float32)
    for row, (_, _, scored, _) in enumerate(samples):
        answer[row, : len(scored)] = [index for _, index in scored]
        score[row, : len(scored)] = [-negative for negative, _ in scored]
    texts = tuple(question for _, question, _, _ in samples)
    return Collection(
        classes=tuple(ordered),
        label=answer[:, 0].astype(np.int64),
        group=image,
        images=images,
        image=image,
        text=np.arange(len(texts)),
        texts=texts,
        masked=texts,
        answer=answer,
        score=score,
        official=np.array([split for *_, split in samples]),
    )


def _best(answers: Counter[str]) -> str:
    return min(answers, key=lambda answer: (-answers[answer], answer))


def _questions(
    entry: PublishedDataset, part: str, split: int, folder: Path
) -> list[tuple[Path, str, Counter[str], int]]:
    """Picture, question, counts of its answers, and split, for one part; [] if its files are missing."""
    names = f"v2_OpenEnded_mscoco_{part}_questions.json", f"v2_mscoco_{part}_annotations.json"
    paths = [
        next((subfolder / name for subfolder in folders(folder) if (subfolder / name).is_file()), None)
        for name in names
    ]
    if paths[0] is None and paths[1] is None:
        return []
    for path, name in zip(paths, names, strict=True):
        if path is None:
            raise entry.content_error(folder, f"{name} is missing")
    pictures = _pictures(folder, part)
    if pictures is None:
        raise entry.content_error(folder, f"the folder {part} is missing")
    assert paths[0] is not None and paths[1] is not None
    answers_by_question = {}
    for number, answers in entries(read_json(paths[1]), "annotations", ("question_id", "answers"), paths[1]):
        answer_texts = [
            normalise_answer(str(answer))
            for (answer,) in entries({"answers": answers}, "answers", ("answer",), paths[1])
        ]
        answers_by_question[number] = Counter(answer for answer in answer_texts if answer)
    questions = []
    for image, question, number in entries(
        read_json(paths[0]), "questions", ("image_id", "question", "question_id"), paths[0]
    ):
        if not isinstance(image, int):
            raise DataError(f"{paths[0]}: image_id of question {number} is {image!r}; expected a number")
        name = f"COCO_{part}_{image:012d}.jpg"
        questions.append((pictures / name, str(question).strip(), answers_by_question.get(number, Counter()), split))
    return questions


def _pictures(folder: Path, part: str) -> Path | None:
    return next((subfolder for subfolder in folders(folder, 3) if subfolder.name == part), None)


def _folder_set(name: str, answers: int) -> FolderSet:
    entry = vqa_dataset(name)
    return FolderSet(
        partial(build, entry, answers),
        entry.find,
        summary=f"questions about COCO's pictures, {answers:,} answers (VQAv2)",
    )


VQA, VQA_310, VQA_3000 = _folder_set("vqa", FULL), _folder_set("vqa-310", 310), _folder_set("vqa-3000", 3000)
