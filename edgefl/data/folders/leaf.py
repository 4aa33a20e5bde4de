"""FEMNIST and Shakespeare as LEAF's scripts write them: ``train/*.json`` and ``test/*.json``, whose users are clients.

A file has ``users``, ``num_samples`` and ``user_data: {user: {x, y}}`` (Caldas et al. 2018).  Of Shakespeare's test
files ``num_samples`` counts 79 samples of each user that LEAF's split leaves out, so that it isn't read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.arrays import Integers
from edgefl.data.collection import Collection, FolderRequest, FolderSet, number_keys, resize_images
from edgefl.data.folders.pictures import Pixels
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folders, report_left_out
from edgefl.data.folders.rows import read_json
from edgefl.errors import DataError

SIDE = 28
"""Height and width of FEMNIST's pictures, as LEAF scales NIST's."""
DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""FEMNIST's 62 classes in LEAF's order."""
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""Shakespeare's 80 characters, the classes, in the order of LEAF's ``ALL_LETTERS``."""
FIELDS = ("users", "num_samples", "user_data")
"""What LEAF writes into each of its files, by which one is told from other JSON."""

UserReader = Callable[[str, list[Any], list[Any]], tuple[Iterable[Any], list[int]]]
"""Gives a user's samples and their classes, of its x and y and of where they stand."""


def _leaf_set(name: str, samples: str, x: str, more: str) -> PublishedDataset:
    return PublishedDataset(
        name,
        f"LEAF's train/*.json and test/*.json with {', '.join(FIELDS)}",
        f"https://github.com/TalwalkarLab/leaf (in data/{name}: ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample{more})",
        test="as LEAF splits it",
        forms=((PublishedFile("train/*.json", samples), PublishedFile("test/*.json", f"{x} a sample")),),
    )


FEMNIST = _leaf_set("femnist", "805,263 samples of 3,550 writers, with test", "784 numbers", "")
SHAKESPEARE = _leaf_set("shakespeare", "4,226,150 samples of 660 roles, with test", "80 characters", " --tf 0.8")


def femnist(wanted: FolderRequest) -> Collection:
    """FEMNIST: grey pictures [n, 1, 28, 28] of 62 digits and letters; an owner is a writer.

    Raises DataError for a file or a sample of another format.
    """

    def read(where: str, x: list[Any], y: list[Any]) -> tuple[Pixels, list[int]]:
        try:
            values = np.array(x, np.float32).reshape(len(x), SIDE * SIDE)
        except (ValueError, TypeError):
            values = np.full((1, 1), np.nan, np.float32)
        if not ((values >= 0) & (values <= 1)).all():
            raise DataError(f"{where}.x: a picture must be {SIDE * SIDE} numbers from 0 to 1")
        if wrong := [value for value in y if type(value) is not int or not 0 <= value < len(DIGITS_AND_LETTERS)]:
            raise DataError(f"{where}.y: {wrong[0]!r} is not a class; classes are 0..{len(DIGITS_AND_LETTERS) - 1}")
        return np.round(values * 255).astype(np.uint8), y  # LEAF divides bytes by 255

    pictures, label, owner, official = _read_users(FEMNIST, wanted, read)
    pixels = resize_images(np.stack(pictures).reshape(-1, 1, SIDE, SIDE), wanted.size)
    return Collection(tuple(DIGITS_AND_LETTERS), label, np.arange(len(label)), pixels, owner=owner, official=official)


def shakespeare(wanted: FolderRequest) -> Collection:
    """Shakespeare: the character that follows 80 characters, as LEAF's task; an owner is a role of a play.

    Samples of a role overlap in all characters but one, so a role is a ``group``, held out whole for validation.  LEAF
    has no class for characters outside its alphabet: they are left out as answers.  Raises DataError for a file or a
    sample of another format.
    """
    number = {letter: index for index, letter in enumerate(ALPHABET)}
    unknown = 0

    def read(where: str, x: list[Any], y: list[Any]) -> tuple[list[str], list[int]]:
        nonlocal unknown
        for name, wrong, what in (
            ("x", [text for text in x if not isinstance(text, str) or not text], "a text"),
            ("y", [letter for letter in y if not isinstance(letter, str) or len(letter) != 1], "one character"),
        ):
            if wrong:
                raise DataError(f"{where}.{name}: {wrong[0]!r:.60} is not {what}")
        known = [letter in number for letter in y]
        unknown += known.count(False)
        return [*compress(x, known)], [number[letter] for letter in compress(y, known)]

    texts, label, role, official = _read_users(SHAKESPEARE, wanted, read)
    counts = {"whose next character isn't in LEAF's alphabet": unknown}
    report_left_out(wanted.on_message, SHAKESPEARE.name, counts, unknown + len(label))
    told = tuple(texts)
    return Collection(
        tuple(ALPHABET), label, role, None, np.arange(len(told)), told, told, owner=role, official=official
    )


def _read_users(
    published: PublishedDataset, wanted: FolderRequest, read: UserReader
) -> tuple[list[Any], Integers, Integers, Integers]:
    """All samples, and their classes, users and official splits [n].

    Raises DataError for what isn't LEAF's format, and if there are no samples.
    """
    root = next((at for at in folders(wanted.folder) if _files(at, "train") and _files(at, "test")), None)
    if root is None:
        raise published.content_error(wanted.folder)
    found: list[Any] = []
    label, owner, official = list[int](), list[str](), list[int]()
    for path, split in [*((path, 0) for path in _files(root, "train")), *((path, 2) for path in _files(root, "test"))]:
        wanted.on_message(f"{published.name}: {path.parent.name}/{path.name}")
        content = read_json(path)
        _check_fields(content, FIELDS, str(path))
        for user in content["users"]:
            where, samples = f"{path}: user_data.{user}", content["user_data"].get(user)
            _check_fields(samples, ("x", "y"), where)
            if len(samples["x"]) != len(samples["y"]):
                raise DataError(f"{where}: {len(samples['x'])} x, but {len(samples['y'])} y")
            values, classes = read(where, samples["x"], samples["y"])
            found += [*values]
            label += classes
            owner += [user] * len(classes)
            official += [split] * len(classes)
    if not label:
        raise published.content_error(wanted.folder, "no user has samples")
    return found, np.array(label), number_keys(owner), np.array(official)


def _check_fields(given: Any, fields: Sequence[str], where: str) -> None:
    if lacking := [name for name in fields if not isinstance(given, dict) or name not in given]:
        raise DataError(f"{where}: not LEAF's format: it lacks the field {lacking[0]!r} of {', '.join(fields)}")


def _files(folder: Path, split: str) -> list[Path]:
    return sorted((folder / split).glob("*.json"))


FEMNIST_SET = FolderSet(
    femnist, FEMNIST.find, summary="805,263 digits and letters by 3,550 writers, 62 classes (LEAF)", natural=femnist
)
SHAKESPEARE_SET = FolderSet(
    shakespeare, SHAKESPEARE.find, summary="the character after 80 others, by 660 roles of plays, 80 classes (LEAF)",
    natural=shakespeare, vocabulary="characters",
)  # fmt: skip
