"""Speech Commands 0.02: a second of one of 35 words by one of 2,618 speakers (Warden 2018), whose clips are a client.

A file is ``<word>/<speaker>_nohash_<number>.wav``; ``validation_list.txt`` and ``testing_list.txt`` name those that
aren't for training, whole speakers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from edgefl.data.audio import Spectrogram
from edgefl.data.collection import Collection, FolderRequest, FolderSet, number_keys
from edgefl.data.folders.places import PublishedDataset, PublishedFile, folder_with_all, report_left_out
from edgefl.data.folders.rows import lines
from edgefl.data.folders.sounds import read_sounds

FRAMES, BINS = 98, 64
"""A second has 98 frames of 25 ms.  64 bins are a choice, as for ``spoken-digits``."""
MARK = "_nohash_"
"""Between the speaker and the number in the name of a file."""
LISTS = {"validation_list.txt": 1, "testing_list.txt": 2}
SPEECH_COMMANDS = PublishedDataset(
    "speech-commands",
    "a folder of .wav files for each word, validation_list.txt and testing_list.txt",
    "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz (2.3 GiB)",
    test="published, 11,005",
    licence="CC BY 4.0",
    forms=(
        (
            PublishedFile(f"*/*{MARK}*.wav", "105,829 sounds in 35 folders"),
            PublishedFile("validation_list.txt", "the names of 9,981 sounds"),
            PublishedFile("testing_list.txt", "the names of 11,005 sounds"),
        ),
    ),
)


def build(wanted: FolderRequest, *, with_sounds: bool = True) -> Collection:
    """Log mel energies [n, 98, 64] of each clip, and its word; an owner is a speaker.  Raises DataError without files.

    Without ``with_sounds`` no sound is read, and the energies are [n, 1, 1].
    """
    root = folder_with_all(wanted.folder, *LISTS)
    paths = sorted(path for path in root.glob("[!_.]*/*.wav") if path.is_file()) if root else []
    clips = [path for path in paths if MARK in path.name]
    if root is None or not clips:
        raise SPEECH_COMMANDS.content_error(wanted.folder)
    energies: Spectrogram = np.broadcast_to(np.float32(0), (len(clips), 1, 1))
    readable = list(range(len(clips)))
    if with_sounds:
        energies, readable = read_sounds(clips, wanted, SPEECH_COMMANDS.name, FRAMES, BINS)
    counts = {"without a speaker in their names": len(paths) - len(clips), "unreadable": len(clips) - len(readable)}
    report_left_out(wanted.on_message, SPEECH_COMMANDS.name, counts, len(paths))
    names = [(clips[index].parent.name, clips[index].name) for index in readable]
    split_of = {line.strip(): split for file, split in LISTS.items() for line in lines(root / file)}
    classes = sorted({word for word, _ in names})
    speaker = number_keys([name.partition(MARK)[0] for _, name in names])
    return Collection(
        tuple(classes),
        np.array([classes.index(word) for word, _ in names]),
        speaker,
        audio=energies,
        owner=speaker,
        official=np.array([split_of.get(f"{word}/{name}", 0) for word, name in names]),
    )


SPEECH_COMMANDS_SET = FolderSet(
    build,
    SPEECH_COMMANDS.find,
    summary="105,829 spoken words by 2,618 speakers, 35 words (Speech Commands 0.02)",
    natural=partial(build, with_sounds=False),
)
