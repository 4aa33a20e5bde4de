"""Miniatures of published data sets, in the published file formats."""

from __future__ import annotations

import csv
import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from edgefl.models.towers.vision import import_torchvision

FRUIT = ["apple", "pear", "plum"]


def picture(seed: int, size: tuple[int, int] = (12, 9), kind: str = "JPEG") -> bytes:
    """The bytes of a picture of ``size`` (width, height), filled with one colour from the seed."""
    file = io.BytesIO()
    Image.new("RGB", size, (seed * 37 % 256, seed * 91 % 256, seed * 53 % 256)).save(file, kind)
    return file.getvalue()


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def table(path: Path, rows: list[list[object]], **form: str) -> Path:
    file = io.StringIO()
    csv.writer(file, **form).writerows(rows)
    return write(path, file.getvalue())


def cifar100(folder: Path, train: int = 30, test: int = 12, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Write the binary version; returns labels and pictures [samples, 3, 32, 32]."""
    rng = np.random.default_rng(0)
    names = [*FRUIT, *(f"thing {i}" for i in range(classes))][:classes]
    label = np.arange(train + test, dtype=np.uint8) % classes
    pixels = rng.integers(0, 256, (train + test, 3, 32, 32), np.uint8)
    records = np.concatenate([np.zeros((len(label), 1), np.uint8), label[:, None], pixels.reshape(len(label), -1)], 1)
    binary = folder / "cifar-100-binary"
    write(binary / "train.bin", records[:train].tobytes())
    write(binary / "test.bin", records[train:].tobytes())
    write(binary / "fine_label_names.txt", "\n".join(names) + "\n")
    write(binary / "coarse_label_names.txt", "food\n")
    return label, pixels


def ag_news(folder: Path, train: int = 40, test: int = 12) -> None:
    for name, many in (("train", train), ("test", test)):
        news = [[i % 4 + 1, f"{name} title {i}", f"story number {i}, told \\by {name}"] for i in range(many)]
        table(folder / f"{name}.csv", news, quoting=csv.QUOTE_ALL)


def leaf(folder: Path, users: dict[str, dict[str, tuple[list[Any], list[Any]]]], **more: object) -> None:
    """Write ``{split: {user: (x, y)}}`` as LEAF's scripts do, a file for each split."""
    for split, of in users.items():
        samples = {user: {"x": x, "y": y} for user, (x, y) in of.items()}
        counts = [len(y) for _, y in of.values()]
        content = {"users": [*of], "num_samples": counts, "user_data": samples, **more}
        write(folder / split / f"all_data_niid_1_keep_0_{split}_9.json", json.dumps(content))


def femnist(folder: Path, writers: int = 4, train: int = 12, test: int = 3) -> np.ndarray:
    """Write characters of each writer; returns the bytes of the first one's pictures ``[train, 784]``."""
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (2, writers, max(train, test), 784))
    users = {
        split: {
            f"f{writer:04d}_{writer:02d}": ((pixels[half, writer, :n] / 255).tolist(), [(3 * i) % 62 for i in range(n)])
            for writer in range(writers)
        }
        for half, (split, n) in enumerate((("train", train), ("test", test)))
    }
    leaf(folder / "data", users)
    return np.asarray(pixels[0, 0, :train])


def shakespeare(folder: Path, roles: dict[str, str] | None = None, train: float = 0.8) -> None:
    """Write every 80 characters of each role's text with the next one, split over time as LEAF does."""
    roles = roles or {"HAMLET_HAMLET": "To be, or not to be, that is the question: " * 12,
                      "MACBETH_LADY": "Out, damned spot! Out, I say! One; two: why, then " * 10}  # fmt: skip
    users: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {"train": {}, "test": {}}
    for role, text in roles.items():
        x, y = [text[i : i + 80] for i in range(len(text) - 80)], [*text[80:]]
        cut = max(1, int(train * len(x)))
        users["train"][role], users["test"][role] = (x[:cut], y[:cut]), (x[cut + 79 :], y[cut + 79 :])
    leaf(folder / "data", users, hierarchies=[role.partition("_")[0] for role in roles])


def flickr(folder: Path, pictures: int = 12, captions: int = 5, test: int = 0) -> None:
    """Write a folder of pictures with the original token file, or FedCola's split if pictures to ``test`` are given."""
    told = [
        (f"{1000 + i}.jpg", n, f"A dog , seen {n} times , in field {i} .")
        for i in range(pictures + test)
        for n in range(captions)
    ]
    for i in range(pictures + test):
        write(folder / "flickr30k-images" / f"{1000 + i}.jpg", picture(i))
    if not test:
        write(folder / "results_20130124.token", "".join(f"{name}#{n}\t{text}\n" for name, n, text in told))
        return
    for part, rows in (("train", told[: pictures * captions]), ("test", told[pictures * captions :])):
        write(folder / f"{part}.csv", "image_name| comment_number| comment\n" + "".join(
            f"{name}| {n}| {text}\n" for name, n, text in rows))  # fmt: skip


def coco(folder: Path, year: str = "2017", train: int = 8, val: int = 4, captions: int = 5) -> None:
    for part, many, first in (("train", train, 100), ("val", val, 900)):
        images, annotations = [], []
        for i in range(many):
            number = first + i
            name = f"{number:012d}.jpg" if year == "2017" else f"COCO_{part}{year}_{number:012d}.jpg"
            write(folder / f"{part}{year}" / name, picture(number))
            images.append({"id": number, "file_name": name, "height": 9, "width": 12})
            annotations += [
                {"image_id": number, "id": n * many + i + first * 100, "caption": f"Thing {number}, view {n}.\n"}
                for n in range(captions)
            ]
        annotations.sort(key=lambda caption: caption["id"])  # captions of a picture aren't adjacent
        content = {"info": {}, "licenses": [], "images": images, "annotations": annotations}
        write(folder / "annotations" / f"captions_{part}{year}.json", json.dumps(content))


ANSWERS = [["yes"] * 10, ["no"] * 8 + ["yes"] * 2, ["red"] * 2 + ["the Red."] + ["blue"] * 7, ["umbrella"] * 10]


def vqa(folder: Path, train: int = 6, val: int = 3, more: int = 0) -> None:
    """Write two questions for each picture, with the answers of ``ANSWERS`` and so many ``more`` in turn."""
    of_all = ANSWERS + [[f"thing {i}"] * 10 for i in range(more)]
    for part, many, first in (("train2014", train, 1), ("val2014", val, 50)):
        questions, annotations = [], []
        for i in range(2 * many):
            image, number = first + i // 2, (first + i // 2) * 1000 + i % 2
            write(folder / part / f"COCO_{part}_{image:012d}.jpg", picture(image))
            questions.append({"image_id": image, "question": f"What is in picture {number}?", "question_id": number})
            texts = of_all[i % len(of_all)]
            answers = [{"answer": a, "answer_confidence": "yes", "answer_id": n + 1} for n, a in enumerate(texts)]
            annotations.append({"question_id": number, "image_id": image, "answers": answers, "answer_type": "other"})
        names = f"v2_OpenEnded_mscoco_{part}_questions.json", f"v2_mscoco_{part}_annotations.json"
        write(folder / names[0], json.dumps({"data_type": "mscoco", "questions": questions}))
        write(folder / names[1], json.dumps({"data_type": "mscoco", "annotations": annotations}))


def medmnist(
    path: Path, classes: int = 11, size: int = 28, colours: bool = False, of_class: int = 2, **other: np.ndarray
) -> None:
    rng = np.random.default_rng(1)
    arrays: dict[str, np.ndarray] = {}
    for name, many in (("train", of_class * classes), ("val", classes), ("test", classes)):
        shape = (many, size, size, 3) if colours else (many, size, size)
        arrays[f"{name}_images"] = rng.integers(0, 256, shape, np.uint8)
        arrays[f"{name}_labels"] = (np.arange(many, dtype=np.uint8) % classes)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **(arrays | other))


def mtsamples(folder: Path, rows: int = 120, specialties: int = 4) -> None:
    head = ["", "description", "medical_specialty", "sample_name", "transcription", "keywords"]
    samples = [
        [i, "", f" Specialty {i % specialties}", "", f"SUBJECTIVE:, patient {i} was seen", ""] for i in range(rows)
    ]
    table(folder / "mtsamples.csv", [head, *samples])


def medical_abstracts(folder: Path, train: int = 40, test: int = 10) -> None:
    for name, many in (("train", train), ("test", test)):
        rows = [[i % 5 + 1, f"Abstract {i} of {name}: the patients, 12 of 30, were well."] for i in range(many)]
        table(folder / f"medical_tc_{name}.csv", [["condition_label", "medical_abstract"], *rows])


def advance(folder: Path, classes: int = 3, of_class: int = 8, seconds: float = 0.1) -> None:
    """Write a picture and a sound of 16-bit samples at 22,050 Hz under each name."""
    times = np.arange(int(22_050 * seconds)) / 22_050
    for i in range(classes * of_class):
        name = Path(f"scene {i % classes}") / f"{i:05d}"
        write(folder / "vision" / name.with_suffix(".jpg"), picture(i))
        tone(folder / "sound" / name.with_suffix(".wav"), 9_000 * np.sin(2 * np.pi * (200 + 40 * i) * times), 22_050)


def tone(path: Path, samples: np.ndarray, rate: int = 16_000) -> None:
    with wave.open(str(write(path, b"")), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(samples.astype("<i2").tobytes())


def speech_commands(folder: Path, speakers: int = 4, takes: int = 6) -> None:
    """Write so many takes of two words by each speaker; the last but one is for validation, the last for the test."""
    times = np.arange(16_000) / 16_000
    names = [
        f"{word}/{speaker:08x}_nohash_{take}.wav"
        for speaker in range(speakers)
        for word in ("no", "yes")
        for take in range(takes)
    ]
    for i, name in enumerate(names):
        tone(folder / name, 9_000 * np.sin(2 * np.pi * (300 + 20 * i) * times))
    tone(folder / "_background_noise_" / "pink_noise.wav", times)
    for file, speaker in (("validation_list.txt", speakers - 2), ("testing_list.txt", speakers - 1)):
        write(folder / file, "".join(f"{name}\n" for name in names if f"/{speaker:08x}_" in name))


def uci_har(folder: Path, people: int = 4, windows: int = 12) -> np.ndarray:
    """Write so many windows of each person, the last one's for the test; returns all ``[windows, 128, 9]`` in turn."""
    rng = np.random.default_rng(3)
    signals = rng.normal(size=(people * windows, 128, 9)).astype(np.float32)
    person = np.repeat(np.arange(1, people + 1), windows)
    activity = np.tile(np.arange(windows) % 6 + 1, people)
    signals += activity[:, None, None] / 2
    names = [f"{of}_{axis}" for of in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    for split, of in (("train", person < people), ("test", person == people)):
        for channel, name in enumerate(names):
            rows = ["".join(f" {value:15.7e}" for value in window) for window in signals[of][:, :, channel]]
            write(folder / split / "Inertial Signals" / f"{name}_{split}.txt", "\n".join(rows) + "\n")
        for name, values in (("y", activity), ("subject", person)):
            write(folder / split / f"{name}_{split}.txt", "".join(f"{value}\n" for value in values[of]))
    return signals


def vit(path: Path, **sizes: Any) -> Path:
    """A ViT's weights as timm writes them; ``sizes`` are those of its ``VisionTransformer``."""
    import_torchvision()
    from timm.models.vision_transformer import VisionTransformer

    return _weights(path, VisionTransformer(**sizes))


def of_transformers(folder: Path, kind: str, **sizes: Any) -> Path:
    """A folder as transformers saves its model of a ``kind`` (ViT, DistilBert, AST) with this configuration."""
    import_torchvision()
    import transformers

    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))
    model.save_pretrained(folder)
    return folder


def _weights(path: Path, module: nn.Module) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), path)
    return path
