"""VQAv2: questions about COCO's pictures, answered by ten people each, as visualqa.org publishes them.

The classes are the most frequent answers; an answer is worth min(1, people who gave it / 3).  The published validation
set is the test set here: the answers of VQAv2's own test set are secret.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from edgefl.data.collection import Collection, FolderSet, Wanted
from edgefl.data.folders.captions import entries
from edgefl.data.folders.pictures import read_pictures
from edgefl.data.folders.places import Published, folders, left_out
from edgefl.data.folders.rows import numbered_in_order, read_json
from edgefl.errors import DataError

PARTS = {"train2014": 0, "val2014": 2}
FULL = 3129

ARTICLES = frozenset({"a", "an", "the"})
NUMBERS = dict(zip("none zero one two three four five six seven eight nine ten".split(),
                   "0 0 1 2 3 4 5 6 7 8 9 10".split(), strict=True))  # fmt: skip
PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation.replace("'", "").replace(":", ""), " "))


def published(name: str) -> Published:
    """VQAv2 under one of its names here."""
    return Published(
        name,
        "v2_OpenEnded_mscoco_train2014_questions.json and v2_mscoco_train2014_annotations.json, the same for val2014, "
        "and COCO's folders train2014 and val2014",
        "https://visualqa.org/download.html",
        beside="vqa",
    )


@lru_cache(2**16)  # ten people answer each question, mostly alike
def normalised(answer: str) -> str:
    """An answer as answers are compared: lower case, no articles and punctuation, numbers as digits."""
    text = re.sub(r"(?<=\d),(?=\d)", "", answer.lower().strip())
    text = re.sub(r"(?<!\d)\.|\.(?!\d)", "", text)
    kept = text.replace(".", "\0").translate(PUNCTUATION).replace("\0", ".")
    words = [NUMBERS.get(word, word) for word in kept.split()]
    return " ".join(word for word in words if word not in ARTICLES)


def build(about: Published, answers: int, wanted: Wanted) -> Collection:
    """The questions that one of the ``answers`` most frequent answers fits; ``label`` is the best of them.

    Frequency is of the answer that most people gave, over all questions that are published with answers; equally
    frequent ones are taken in order of the alphabet.
    """
    found: list[tuple[Path, str, Counter[str], int]] = []
    for part, split in PARTS.items():
        found += _questions(about, part, split, wanted.folder)
    if not found:
        raise about.wrong(wanted.folder)
    frequent = Counter(_best(given) for *_, given, _ in found if given)
    ordered = sorted(frequent, key=lambda answer: (-frequent[answer], answer))[:answers]
    if len(ordered) < 2:
        raise DataError(f"{about.name}: {len(ordered)} different answers in {wanted.folder}; at least 2 are needed")
    number = {answer: index for index, answer in enumerate(ordered)}
    kept = [
        (path, question, sorted((-min(1.0, n / 3), number[a]) for a, n in given.items() if a in number), split)
        for path, question, given, split in found
    ]
    counts = {"without a question": sum(not question for _, question, _, _ in kept)}
    counts[f"with none of the {len(ordered):,} answers"] = sum(bool(q) and not fits for _, q, fits, _ in kept)
    kept = [each for each in kept if each[1] and each[2]]
    paths = list(dict.fromkeys(path for path, *_ in kept))
    images, place = read_pictures(paths, wanted, about.name)
    image = place[numbered_in_order([path for path, *_ in kept])]
    counts["without their picture"] = int((image < 0).sum())
    left_out(wanted.on_message, about.name, counts, len(found))
    kept = [each for each, at in zip(kept, image.tolist(), strict=True) if at >= 0]
    image = image[image >= 0]
    width = max(len(fits) for *_, fits, _ in kept)
    answer = np.full((len(kept), width), -1, np.int32)
    score = np.zeros((len(kept), width), np.float32)
    for row, (_, _, fits, _) in enumerate(kept):
        answer[row, : len(fits)] = [index for _, index in fits]
        score[row, : len(fits)] = [-worth for worth, _ in fits]
    texts = tuple(question for _, question, _, _ in kept)
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
        official=np.array([split for *_, split in kept]),
    )


def _best(given: Counter[str]) -> str:
    return min(given, key=lambda answer: (-given[answer], answer))


def _questions(about: Published, part: str, split: int, folder: Path) -> list[tuple[Path, str, Counter[str], int]]:
    """Picture, question, answers by how many people gave them, and split, of one part; [] if it isn't there."""
    names = f"v2_OpenEnded_mscoco_{part}_questions.json", f"v2_mscoco_{part}_annotations.json"
    paths = [next((place / name for place in folders(folder) if (place / name).is_file()), None) for name in names]
    if paths[0] is None and paths[1] is None:
        return []
    for path, name in zip(paths, names, strict=True):
        if path is None:
            raise about.wrong(folder, f"{name} is missing")
    pictures = _pictures(folder, part)
    if pictures is None:
        raise about.wrong(folder, f"the folder {part} is missing")
    assert paths[0] is not None and paths[1] is not None
    given = {}
    for number, answers in entries(read_json(paths[1]), "annotations", ("question_id", "answers"), paths[1]):
        said = [
            normalised(str(answer)) for (answer,) in entries({"answers": answers}, "answers", ("answer",), paths[1])
        ]
        given[number] = Counter(answer for answer in said if answer)
    found = []
    for image, question, number in entries(
        read_json(paths[0]), "questions", ("image_id", "question", "question_id"), paths[0]
    ):
        if not isinstance(image, int):
            raise DataError(f"{paths[0]}: image_id of question {number} is {image!r}; expected is a number")
        name = f"COCO_{part}_{image:012d}.jpg"
        found.append((pictures / name, str(question).strip(), given.get(number, Counter()), split))
    return found


def _pictures(folder: Path, part: str) -> Path | None:
    return next((place for place in folders(folder, 3) if place.name == part), None)


def _set(name: str, answers: int) -> FolderSet:
    about = published(name)
    return FolderSet(partial(build, about, answers), about.find)


VQA, VQA_310, VQA_3000 = _set("vqa", FULL), _set("vqa-310", 310), _set("vqa-3000", 3000)
