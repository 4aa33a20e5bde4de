"""Speech Commands by speaker, from a miniature in its published form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from miniatures import speech_commands, tone, write

from edgefl import registry
from edgefl.data import DataOptions, open_federation, with_named_clients
from edgefl.data.audio import log_mel, read_wav
from edgefl.errors import DataError


def test_a_clip_has_its_word_its_speaker_and_its_published_split(read, tmp_path):
    speech_commands(tmp_path / "speech_commands_v0.02", speakers=3, takes=1)
    made = read("speech-commands", tmp_path)
    assert made.classes == ("no", "yes") and made.label.tolist() == [0, 0, 0, 1, 1, 1]  # no background noise
    assert made.owner.tolist() == [0, 1, 2] * 2 and made.group.tolist() == made.owner.tolist()
    assert made.official.tolist() == [0, 1, 2] * 2
    wave, rate = read_wav(tmp_path / "speech_commands_v0.02" / "yes" / "00000001_nohash_0.wav")
    assert made.audio.shape == (6, 98, 64) and np.array_equal(made.audio[4], log_mel(wave, rate, bins=64))
    cheap = registry.get("data set", "speech-commands").natural
    assert read.said[0] == "speech-commands: sounds: 0 of 6" and cheap is not None


def test_a_short_or_resampled_clip_is_as_long_and_an_unreadable_one_is_left_out(read, tmp_path):
    speech_commands(tmp_path, speakers=3, takes=1)
    tone(tmp_path / "no" / "00000000_nohash_0.wav", np.arange(8_000) % 100, rate=8_000)
    tone(tmp_path / "no" / "00000001_nohash_0.wav", np.arange(4_000) % 100)
    write(tmp_path / "no" / "00000002_nohash_0.wav", "RIFF")
    write(tmp_path / "no" / "left.wav", "")
    made = read("speech-commands", tmp_path)
    assert made.audio.shape == (5, 98, 64) and made.label.tolist() == [0, 0, 1, 1, 1]
    assert (made.audio[1, 23:] == made.audio[1, -1]).all() and made.audio[0, 23:].std() > 0
    assert read.said[-1] == "speech-commands: of 7 samples, left out: 1 without a speaker in their names, 1 unreadable"


def test_missing_lists_are_told_with_the_archive(read, tmp_path):
    speech_commands(tmp_path, speakers=3, takes=1)
    (tmp_path / "testing_list.txt").unlink()
    with pytest.raises(DataError, match=r"missing testing_list.txt \(the names of 11,005 sounds\); get it from http"):
        read("speech-commands", tmp_path)


def test_a_client_is_a_speaker_and_all_are_counted_without_reading_a_sound(tmp_path: Path) -> None:
    speech_commands(tmp_path, speakers=5)
    (tmp_path / "no" / "00000000_nohash_0.wav").write_bytes(b"")  # none is opened
    given = {"source": "speech-commands", "folders": {"speech-commands": tmp_path}}
    found = with_named_clients(DataOptions.model_validate(given))
    assert found.partition == "natural" and found.clients == {"audio": 3}
    made = open_federation(found, seed=1, tokens=8)
    assert made.client_samples.tolist() == [11, 12, 12] and made.facts["audio"]["frames"] == 98
    assert made.server_samples == {"validation": {"audio": 12}, "test": {"audio": 12}}
    with pytest.raises(DataError, match="natural: 4 clients are requested, but only 3 of the 3 that the data name"):
        open_federation(
            with_named_clients(DataOptions.model_validate({**given, "clients": {"audio": 4}})), seed=1, tokens=8
        )
