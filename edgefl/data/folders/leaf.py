"""FEMNIST and Shakespeare as LEAF's scripts write them: ``train/*.json`` and ``test/*.json``, whose users are clients.

A file has ``users``, ``num_samples`` and ``user_data: {user: {x, y}}`` (Caldas et al. 2018).  Of Shakespeare's test
files ``num_samples`` counts 79 samples of each user that LEAF's split leaves out, so that it isn't read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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

LeafUser = tuple[str, str, int, list[Any], list[Any]]
"""Where a user's samples stand, for errors; the user, the official split, x and y."""


def _published(name: str, samples: str, x: str, command: str) -> PublishedDataset:
    return PublishedDataset(
        name,
        f"LEAF's train/*.json and test/*.json with {', '.join(FIELDS)}",
        f"https://github.com/TalwalkarLab/leaf (in data/{name}: ./preprocess.sh {command})",
        test="as LEAF splits it",
        forms=((PublishedFile("train/*.json", samples), PublishedFile("test/*.json", f"{x} a sample")),),
    )


FEMNIST = _published(
    "femnist", "805,263 samples of 3,550 writers, with test", "784 numbers", "-s niid --sf 1.0 -k 0 -t sample"
)
SHAKESPEARE = _published(
    "shakespeare", "4,226,150 samples of 660 roles, with test", "80 characters",
    "-s niid --sf 1.0 -k 0 -t sample --tf 0.8",
)  # fmt: skip


def femnist(wanted: FolderRequest) -> Collection:
    """FEMNIST: grey pictures [n, 1, 28, 28] of 62 digits and letters; an owner is a writer.

    Raises DataError for a file or a sample of another format.
    """
    pictures: list[Pixels] = []
    label: list[int] = []
    owner: list[str] = []
    split: list[int] = []
    for where, user, of_user, x, y in _users(FEMNIST, wanted):
        try:
            values = np.array(x, np.float32).reshape(-1, SIDE * SIDE)
        except (ValueError, TypeError):
            values = np.full((1, 1), np.nan, np.float32)
        if len(values) != len(x) or not (values >= 0).all() or not (values <= 1).all():
            raise DataError(f"{where}.x: a picture must be {SIDE * SIDE} numbers from 0 to 1")
        if wrong := [value for value in y if type(value) is not int or not 0 <= value < len(DIGITS_AND_LETTERS)]:
            raise DataError(f"{where}.y: {wrong[0]!r} is not a class; classes are 0..{len(DIGITS_AND_LETTERS) - 1}")
        pictures.append(np.round(values * 255).astype(np.uint8))  # LEAF divides bytes by 255
        label += y
        owner += [user] * len(y)
        split += [of_user] * len(y)
    pixels = np.concatenate(pictures).reshape(-1, 1, SIDE, SIDE)
    classes = tuple(DIGITS_AND_LETTERS)
    return Collection(
        classes, np.array(label), np.arange(len(label)), resize_images(pixels, wanted.size), owner=number_keys(owner),
        official=np.array(split),
    )  # fmt: skip


def shakespeare(wanted: FolderRequest) -> Collection:
    """Shakespeare: the character that follows 80 characters, as LEAF's task; an owner is a role of a play.

    Samples of a role overlap in all characters but one, so a role is a ``group``, held out whole for validation.  LEAF
    has no class for characters outside its alphabet: they are left out as answers.  Raises DataError for a file or a
    sample of another format.
    """
    number = {letter: index for index, letter in enumerate(ALPHABET)}
    texts: list[str] = []
    label: list[int] = []
    owner: list[str] = []
    split: list[int] = []
    total = 0
    for where, user, of_user, x, y in _users(SHAKESPEARE, wanted):
        total += len(y)
        for text, after in zip(x, y, strict=True):
            if not isinstance(text, str) or not text:
                raise DataError(f"{where}.x: {text!r:.60} is not a text")
            if not isinstance(after, str) or len(after) != 1:
                raise DataError(f"{where}.y: {after!r:.60} is not one character")
            if after in number:
                texts.append(text)
                label.append(number[after])
                owner.append(user)
                split.append(of_user)
    counts = {"whose next character isn't in LEAF's alphabet": total - len(texts)}
    report_left_out(wanted.on_message, SHAKESPEARE.name, counts, total)
    role, told = number_keys(owner), tuple(texts)
    return Collection(
        tuple(ALPHABET), np.array(label), role, None, np.arange(len(told)), told, told, owner=role,
        official=np.array(split),
    )  # fmt: skip


def _users(published: PublishedDataset, wanted: FolderRequest) -> Iterator[LeafUser]:
    """The samples of each user, file by file.  Raises DataError for what isn't LEAF's format, and if there are none."""
    root = next((at for at in folders(wanted.folder) if _files(at, "train") and _files(at, "test")), None)
    if root is None:
        raise published.content_error(wanted.folder)
    empty = True
    for official, split in ((0, "train"), (2, "test")):
        for path in _files(root, split):
            wanted.on_message(f"{published.name}: {split}/{path.name}")
            content = read_json(path)
            if lacking := [name for name in FIELDS if not isinstance(content, dict) or name not in content]:
                raise DataError(f"{path}: not LEAF's format: it lacks the field {lacking[0]!r} of {', '.join(FIELDS)}")
            for user in content["users"]:
                where, samples = f"{path}: user_data.{user}", content["user_data"].get(user)
                if lacking := [name for name in ("x", "y") if not isinstance(samples, dict) or name not in samples]:
                    raise DataError(f"{where}: not LEAF's format: it lacks the field {lacking[0]!r} of x, y")
                x, y = samples["x"], samples["y"]
                if len(x) != len(y):
                    raise DataError(f"{where}: {len(x)} x, but {len(y)} y")
                if x:
                    empty = False
                    yield where, user, official, x, y
    if empty:
        raise published.content_error(wanted.folder, "no user has samples")


def _files(folder: Path, split: str) -> list[Path]:
    return sorted((folder / split).glob("*.json"))


FEMNIST_SET = FolderSet(
    femnist, FEMNIST.find, summary="805,263 digits and letters by 3,550 writers, 62 classes (LEAF)", natural=femnist
)
SHAKESPEARE_SET = FolderSet(
    shakespeare, SHAKESPEARE.find, summary="the character after 80 others, by 660 roles of plays, 80 classes (LEAF)",
    natural=shakespeare, vocabulary="characters",
)  # fmt: skip
