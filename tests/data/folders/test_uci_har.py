"""UCI HAR by person, from a miniature in its published form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from miniatures import uci_har, write

from edgefl.data import DataOptions, open_federation, with_named_clients
from edgefl.data.sample_ids import public_samples
from edgefl.errors import DataError


def test_a_window_has_nine_signals_its_activity_its_person_and_its_published_split(read, tmp_path):
    signals = uci_har(tmp_path / "UCI HAR Dataset", people=3, windows=6)
    made = read("uci-har", tmp_path)
    assert made.classes[0] == "walking" and made.label.tolist() == [0, 1, 2, 3, 4, 5] * 3
    assert made.owner.tolist() == [1] * 6 + [2] * 6 + [3] * 6 and made.group.tolist() == made.owner.tolist()
    assert made.official.tolist() == [0] * 12 + [2] * 6
    assert np.allclose(made.motion, signals, rtol=1e-6)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("train/y_train.txt", "7\n" * 12, r"train: 12 classes, which must be 1..6, and 12 people"),
        ("train/subject_train.txt", "1\n", r"train: 12 classes, which must be 1..6, and 1 people"),
        ("train/y_train.txt", "walking\n" * 12, r"y_train.txt: could not convert string 'walking' to float32"),
        (
            "test/Inertial Signals/body_gyro_y_test.txt",
            "1 2\n" * 6,
            r"y_test.txt: \[6, 2\] numbers; expected \[6, 128\]",
        ),
    ],
)
def test_another_shape_is_one_line(file, content, said, read, tmp_path):
    uci_har(tmp_path, people=3, windows=6)
    write(tmp_path / file, content)
    with pytest.raises(DataError, match=said) as caught:
        read("uci-har", tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files_are_told_with_their_place(read, tmp_path):
    uci_har(tmp_path, people=2, windows=2)
    (tmp_path / "train" / "Inertial Signals" / "body_acc_x_train.txt").unlink()
    with pytest.raises(DataError, match="body_acc_x_train.txt: can't be read: No such file"):
        read("uci-har", tmp_path)
    (tmp_path / "train" / "subject_train.txt").unlink()
    with pytest.raises(
        DataError, match=r"missing train/subject_train.txt \(7,352 people\); get it from https://archive"
    ):
        read("uci-har", tmp_path)


def opened(folder: Path, **more: object) -> DataOptions:
    given = {"source": "uci-har", "folders": {"uci-har": folder}, "validation": 0, **more}
    return with_named_clients(DataOptions.model_validate(given))


def test_a_client_is_a_person_and_channels_are_normalised_each_for_itself(tmp_path: Path) -> None:
    signals = uci_har(tmp_path, people=4)
    options = opened(tmp_path)
    assert options.partition == "natural" and options.clients == {"motion": 3}
    made = open_federation(options, seed=1, tokens=8)
    assert made.kinds == ("motion",) and made.client_samples.tolist() == [12] * 3
    assert made.server_samples == {"test": {"motion": 12}}
    source, train = made.client(1), signals[:36]
    assert source.fields is not None
    rows = np.sort(made.rows(1, "motion"))
    assert rows.tolist() == [*range(12, 24)]
    fields = source.fields("private", "motion", "motion", rows, ("motion",))
    expected = (signals[12:24] - train.mean((0, 1))) / train.std((0, 1))
    assert np.allclose(fields["motion"].numpy(), expected, atol=1e-4)
    ready = made.preprocessing()["motion"]
    assert np.allclose(ready(signals[12])[0].numpy(), expected[:1], atol=1e-4)
    assert ready.by_modality["motion"](list(signals[12:24])).shape == (12, 128, 9)
    with pytest.raises(DataError, match=r"windows of \[128, 9\] readings and channels are expected, not \[1, 9, 128\]"):
        ready(signals[12].T)


def test_people_of_all_sets_can_be_pooled_and_public_windows_are_known_again(tmp_path: Path) -> None:
    uci_har(tmp_path, people=6)
    pooled = opened(tmp_path, pool=True, test=2, public=1, clients={"motion": 3})
    made = open_federation(pooled, seed=1, tokens=8)
    assert made.server_samples == {"test": {"motion": 24}, "public": {"motion": 12}}
    seen = public_samples(made, "motion")
    assert seen.seen_mask(made.public_part("motion"), np.arange(72)).sum() == 12
