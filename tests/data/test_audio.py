"""Sound: files, resampling and the filter bank against a direct Fourier sum; the sets that have it."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from edgefl import registry
from edgefl.data.audio import FLOOR, SILENCE, log_mel, mel, mel_filters, pad_or_cut, read_wav, resample
from edgefl.data.collection import FolderRequest
from edgefl.data.packages.advance import ADVANCE, build
from edgefl.errors import DataError

needs_espeak = pytest.mark.skipif(
    any(find_spec(m) is None for m in ("espeakng_loader", "sklearn")), reason="the extra audio is missing"
)


def noise(seconds, rate=16_000, seed=0):
    return (np.random.default_rng(seed).standard_normal(int(seconds * rate)) * 0.1).astype(np.float32)


def by_hand(wave, rate, bins):
    """Kaldi's filter bank from its definition: a Fourier sum, and triangles in mel, in double precision."""
    length, shift = rate // 40, rate // 100
    points = 2 ** int(np.ceil(np.log2(length)))
    n = np.arange(length)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * n / (length - 1))
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(points // 2 + 1), n) / points)
    least, most = 1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + rate / 2 / 700)
    width = (most - least) / (bins + 1)
    frames = []
    for start in range(0, len(wave) - length + 1, shift):
        frame = wave[start : start + length].astype(np.float64)
        frame = frame - frame.mean()
        frame = frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(fourier @ (frame * window)) ** 2
        row = []
        for b in range(bins):
            energy = 0.0
            for k, p in enumerate(power):
                m = 1127 * np.log(1 + k * rate / points / 700)
                energy += p * max(0.0, 1 - abs(m - (least + (b + 1) * width)) / width)
            row.append(np.log(max(energy, FLOOR)))
        frames.append(row)
    return np.array(frames)


@pytest.mark.parametrize(("rate", "bins"), [(16_000, 23), (16_000, 128), (8_000, 40)])
def test_the_filter_bank_is_a_fourier_sum(rate, bins):
    wave = noise(0.08, rate) + 0.2  # a constant is removed
    found = log_mel(wave, rate, bins=bins)
    assert found.dtype == np.float32 and found.shape == ((len(wave) - rate // 40) // (rate // 100) + 1, bins)
    np.testing.assert_allclose(found, by_hand(wave, rate, bins), atol=2e-3)


@pytest.mark.slow(smaller="test_the_filter_bank_is_a_fourier_sum")
@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_the_filter_bank_is_that_of_transformers():
    """Its front end of AST is another hand's: normalisation off, padding cut."""
    from transformers import ASTFeatureExtractor

    theirs = ASTFeatureExtractor(do_normalize=False, max_length=98)(
        noise(1.0), sampling_rate=16_000, return_tensors="np"
    )
    np.testing.assert_allclose(log_mel(noise(1.0)), theirs["input_values"][0], atol=1e-3)


def test_a_tone_is_loudest_in_its_bin():
    filters = mel_filters(16_000, 512, 64)
    for frequency in (300, 1000, 3000):
        found = log_mel(np.sin(2 * np.pi * frequency * np.arange(16_000) / 16_000).astype(np.float32), bins=64)
        assert found.mean(0).argmax() == filters[round(frequency * 512 / 16_000)].argmax()
    assert mel(np.array([1000.0])) == pytest.approx(1000, abs=0.1)


def test_silence_and_clips_that_are_too_short():
    assert (log_mel(np.zeros(16_000, np.float32)) == np.float32(SILENCE)).all()
    assert log_mel(noise(1.0)).shape == (98, 128), "an AST's second"
    assert log_mel(noise(0.02), bins=8).shape == (0, 8)
    padded = pad_or_cut(log_mel(noise(0.1), bins=8), 12)
    assert padded.shape == (12, 8) and (padded[8:] == np.float32(SILENCE)).all() and padded[7].max() > SILENCE
    assert (pad_or_cut(padded, 3, 0.0) == padded[:3]).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32"])
def test_wav_files_of_every_type(tmp_path, dtype):
    from scipy.io import wavfile

    wave = np.stack([noise(0.05), -noise(0.05) / 2], 1).clip(-1, 0.99)
    scale = {"uint8": 128, "int16": 2**15, "int32": 2**31, "float32": 1}[dtype]
    stored = (wave.astype(np.float64) * scale + (128 if dtype == "uint8" else 0)).astype(dtype)
    wavfile.write(tmp_path / "a.wav", 8_000, stored)
    found, rate = read_wav(tmp_path / "a.wav")
    assert rate == 8_000 and found.dtype == np.float32
    np.testing.assert_allclose(found, wave.mean(1), atol=1 / 128 if dtype == "uint8" else 1e-4)


def test_what_is_no_wav_file(tmp_path):
    from scipy.io import wavfile

    (tmp_path / "a.wav").write_bytes(b"RIFF not at all")
    wavfile.write(tmp_path / "b.wav", 8_000, np.zeros(0, np.int16))
    for name in ("a", "b", "c"):
        with pytest.raises(DataError, match=f"{name}.wav"):
            read_wav(tmp_path / f"{name}.wav")


@pytest.mark.slow(smaller="test_a_tone_is_loudest_in_its_bin")
def test_resampling_keeps_tones_and_removes_what_does_not_fit():
    from scipy.signal import resample_poly

    wave = noise(0.2, 22_050)
    np.testing.assert_allclose(resample(wave, 22_050), resample_poly(wave, 320, 441), atol=1e-6)
    assert resample(wave, 16_000) is wave
    seconds = np.arange(44_100) / 44_100
    for frequency, there in ((1_000, True), (12_000, False)):
        found = resample(np.sin(2 * np.pi * frequency * seconds).astype(np.float32), 44_100)
        expected = np.sin(2 * np.pi * frequency * np.arange(16_000) / 16_000)
        np.testing.assert_allclose(found[200:-200], (expected if there else 0 * expected)[200:-200], atol=5e-3)


def advance(folder, classes=("airport", "beach"), each=3):
    """ADVANCE's layout in miniature."""
    from PIL import Image
    from scipy.io import wavfile

    for place, name in enumerate(classes):
        for side in ("vision", "sound"):
            (folder / side / name).mkdir(parents=True)
        for number in range(each):
            picture = np.full((20, 24, 3), 40 * place + number, np.uint8)
            Image.fromarray(picture).save(folder / "vision" / name / f"{number:05}.jpg")
            samples = (noise(0.4, seed=number) * 2**15).astype(np.int16)
            wavfile.write(folder / "sound" / name / f"{number:05}.wav", 16_000, samples)


def wanted(folder, tmp_path, told):
    (scratch := tmp_path / "scratch").mkdir()
    return FolderRequest(16, folder, told.append, scratch)


def test_advance(tmp_path):
    told = []
    advance(folder := tmp_path / "here" / "ADVANCE")
    (folder / "sound" / "beach" / "00001.wav").unlink()
    (folder / "sound" / "beach" / "00002.wav").write_bytes(b"nothing")
    made = build(wanted(tmp_path / "here", tmp_path, told))
    assert made.classes == ("airport", "beach") and made.label.tolist() == [0, 0, 0, 1]
    assert made.images[made.image].shape == (4, 3, 16, 16) and made.audio.shape == (4, 1024, 128)
    assert [int(x) for x in made.images[made.image][:, 0, 0, 0]] == [0, 1, 2, 40]
    heard = log_mel((noise(0.4, seed=2) * 2**15).astype(np.int16).astype(np.float32) / 2**15)
    np.testing.assert_allclose(made.audio[2, : len(heard)], heard, atol=1e-4)
    assert (made.audio[2, len(heard) :] == 0).all()
    assert any("1 without their picture or sound" in t and "1 with a sound" in t for t in told), told


def test_another_layout_is_no_advance(tmp_path):
    (tmp_path / "airport").mkdir()
    with pytest.raises(DataError, match=r"looked for .*vision/<class>/\*.jpg.* found airport/"):
        build(wanted(tmp_path, tmp_path, []))
    with pytest.raises(DataError, match="is not there"):
        ADVANCE.find(tmp_path / "nowhere")


@needs_espeak
@pytest.mark.slow(smaller="test_silence_and_clips_that_are_too_short")
def test_spoken_digits_are_a_voice_of_each_and_the_same_every_time():
    from edgefl.data.packages.espeak import Utterance, speak
    from edgefl.data.packages.spoken_digits import TIMBRES, VOICES

    assert len(VOICES) == 90
    asked = [Utterance("seven", f"en-us+{timbre}", 150, 50) for timbre in TIMBRES]
    first, rate = speak(asked)
    second, _ = speak(asked)
    assert rate == 22_050 and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(0.2 < len(wave) / rate < 1 and np.abs(wave).max() > 0.1 for wave in first)
    assert len({wave.tobytes() for wave in first}) == len(TIMBRES)
    with pytest.raises(DataError, match="no voice 'xx'"):
        speak([Utterance("seven", "xx")])


@needs_espeak
@pytest.mark.slow(smaller="test_wav_files_of_every_type")
def test_spoken_digits():
    made = registry.get("data set", "spoken-digits").build(None, lambda _: None)
    assert made.images.shape == (1797, 1, 8, 8) and made.audio.shape == (1797, 80, 64)
    assert len(set(zip(made.owner.tolist(), made.label.tolist(), strict=True))) == 900, "each voice says each digit"
    assert np.bincount(made.group).min() >= 16
    assert (made.audio[:, -1] == np.float32(SILENCE)).all(), "nothing is cut"


@needs_espeak
@pytest.mark.slow(smaller="test_wav_files_of_every_type")
def test_clients_that_see_hear_and_do_both_learn(tmp_path):
    """The shipped scenario in short: far above the chance of 0.1, of voices that no client has."""
    import edgefl

    short = ["compare={}", "schedule.rounds=12", "evaluation.every=12"]
    found = edgefl.run("spoken-digits", overrides=short, out=tmp_path / "run")
    metrics = found.result["metrics"]
    for kind in ("image", "audio", "image-audio"):
        assert metrics[kind]["accuracy"] > 0.5
        assert metrics[kind]["top5_accuracy"] > 0.85
    measured = [r for r in found.records("clients") if r["measured_peak_memory_bytes"] is not None]
    assert {r["kind"] for r in measured} == set(metrics)
    assert all(abs(r["measured_peak_memory_bytes"] - r["peak_memory_bytes"]) <= 4096 for r in measured)
