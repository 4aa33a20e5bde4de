"""AG News, Medical Abstracts and MTSamples, from miniatures in their formats on disk."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from miniatures import ag_news, picture, table, write

from edgefl import registry
from edgefl.data.collection import FolderSet
from edgefl.data.folders.arrow import hub_tables
from edgefl.errors import DataError


def test_ag_news_is_title_and_description(read, tmp_path):
    ag_news(tmp_path / "ag_news_csv")
    made = read("ag-news", tmp_path)
    assert made.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert made.texts[1] == "train title 1 story number 1, told \\by train"
    assert made.masked == made.texts
    assert made.label.tolist() == [i % 4 for i in range(40)] + [i % 4 for i in range(12)]
    assert made.official.tolist() == [0] * 40 + [2] * 12


def test_ag_news_with_a_header_empty_texts_and_copies(read, tmp_path):
    head = ["Class Index", "Title", "Description"]
    table(tmp_path / "train.csv", [head, [1, "a", "b"], [2, " ", ""], [3, "a", "b"], [4, "c", ""]])
    table(tmp_path / "test.csv", [head, [1, "a", "b"]])
    made = read("ag-news", tmp_path)
    assert made.texts == ("a b", "a b", "c", "a b")
    assert made.group.tolist() == [0, 0, 1, 2]  # copies are held out together, within their published split
    assert read.said == ["ag-news: of 5 samples, left out: 1 without a text"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("5,title,text\n", r"train.csv:1: '5' is not a class; classes are 1..4"),
        ("1,title,text\nSports,title,text\n", r"train.csv:2: 'Sports' is not a class; classes are 1..4"),
        ("1,title\n", r"train.csv:1: 2 fields; expected class, title and description"),
        (b"1,caf\xc3\xa9,x\n1,caf\xe9,x\n", r"train.csv:2: byte 0xe9 is not UTF-8"),
        ("", "there is no text in"),
    ],
)
def test_wrong_rows_are_one_line(content, said, read, tmp_path):
    write(tmp_path / "train.csv", content)
    write(tmp_path / "test.csv", "")
    with pytest.raises(DataError, match=said) as caught:
        read("ag-news", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_with_something_else_says_what_was_looked_for(read, tmp_path):
    write(tmp_path / "news.txt", "")
    with pytest.raises(
        DataError,
        match=r"ag-news: looked for train.csv and test.csv .*; found news.txt: missing train.csv \(120,000 texts\), "
        r"test.csv \(7,600 texts\); get it from http",
    ):
        read("ag-news", tmp_path)
    with pytest.raises(DataError, match=r"mtsamples: .*, which data.folders names, is a file, not a folder"):
        read("mtsamples", tmp_path / "news.txt")
    for name in ("medical-abstracts", "mtsamples", "cifar100", "organamnist", "flickr30k", "coco", "vqa", "table"):
        with pytest.raises(DataError, match=f"{name}: looked for .* in {tmp_path} and its subfolders; found news.txt"):
            read(name, tmp_path)


def test_a_folder_is_looked_for_where_the_docs_say(read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EDGEFL_DATA", raising=False)
    with pytest.raises(DataError) as caught:
        read("coco-50k", None)
    assert f"tried {tmp_path}/data/coco-50k, {tmp_path}/data/coco (EDGEFL_DATA is not set)" in str(caught.value)
    ag_news(tmp_path / "data" / "ag-news", train=8)
    assert len(read("ag-news", None).label) == 20
    monkeypatch.setenv("EDGEFL_DATA", str(tmp_path / "sets"))
    ag_news(tmp_path / "sets" / "ag-news", train=4)
    assert len(read("ag-news", None).label) == 16
    with pytest.raises(DataError, match="which data.folders names, is not there"):
        read("ag-news", tmp_path / "elsewhere")


def test_medical_abstracts(read, tmp_path):
    head = ["condition_label", "medical_abstract"]
    table(tmp_path / "medical_tc_train.csv", [head, [5, "Long,\nin two lines"], [1, "tumour"]])
    table(tmp_path / "medical_tc_test.csv", [head, [2, "stomach"]])
    made = read("medical-abstracts", tmp_path)
    assert made.classes[0] == "neoplasms" and len(made.classes) == 5
    assert made.label.tolist() == [4, 0, 1] and made.texts[0] == "Long,\nin two lines"
    assert made.official.tolist() == [0, 0, 2]
    names = [["condition_label", "condition_name"], *([i + 1, f"condition {i}"] for i in range(5))]
    table(tmp_path / "medical_tc_labels.csv", names)
    assert read("medical-abstracts", tmp_path).classes[4] == "condition 4"
    table(tmp_path / "medical_tc_test.csv", [["condition_label", "medical_abstracts"], [2, "stomach"]])
    with pytest.raises(DataError, match="no column 'medical_abstract'; did you mean 'medical_abstracts'"):
        read("medical-abstracts", tmp_path)


def test_mtsamples_holds_copies_together_and_has_no_published_split(read, tmp_path):
    head = ["", "description", "medical_specialty", "sample_name", "transcription", "keywords"]
    rows = [[0, "d", " Surgery", "s", "same text", "k"], [1, "d", " Urology", "s", "same text", "k"],
            [2, "d", " Surgery", "s", "", "k"], [3, "d", " Surgery", "s", "SUBJECTIVE:,  other", ""]]  # fmt: skip
    table(tmp_path / "mtsamples.csv", [head, *rows])
    made = read("mtsamples", tmp_path)
    assert made.classes == ("Surgery", "Urology")
    assert made.label.tolist() == [0, 1, 0] and made.group.tolist() == [0, 0, 1]
    assert made.official is None
    assert read.said == ["mtsamples: of 4 samples, left out: 1 without a text"]


# --- parquet and arrow files of the hub ------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is there")
def test_without_pyarrow_the_error_says_how_to_get_it(read, tmp_path):
    write(tmp_path / "data" / "train-00000-of-00001.parquet", "PAR1")
    with pytest.raises(DataError, match=r"ag-news: .parquet files such as .* pip install pyarrow"):
        read("ag-news", tmp_path)


@pytest.fixture
def arrow():
    """pyarrow, with a table as the hub writes it: the names of classes stand in its schema."""
    pa = pytest.importorskip("pyarrow")

    def made(columns, **classes):
        found = pa.table(columns)
        features = {name: {"names": names, "_type": "ClassLabel"} for name, names in classes.items()}
        about = json.dumps({"info": {"features": features}}).encode()
        return found.replace_schema_metadata({b"huggingface": about})

    return made


def test_parquet_files_of_the_hub(arrow, read, tmp_path):
    import pyarrow.parquet as pq

    for split, many in (("train", 6), ("test", 3)):
        images = [{"bytes": picture(i, (32, 32), "PNG"), "path": None} for i in range(many)]
        columns = {"img": images, "fine_label": [i % 3 for i in range(many)], "coarse_label": [0] * many}
        place = tmp_path / "cifar100"
        place.mkdir(exist_ok=True)
        pq.write_table(arrow(columns, fine_label=["a", "b", "c"]), place / f"{split}-00000-of-00001.parquet")
    made = read("cifar100", tmp_path)
    assert made.classes == ("a", "b", "c") and made.label.tolist() == [0, 1, 2] * 3
    assert made.images.shape == (9, 3, 32, 32) and made.images[1].max((1, 2)).tolist() == [37, 91, 53]
    assert made.official.tolist() == [0] * 6 + [2] * 3
    write(tmp_path / "cifar100" / "test-00000-of-00001.parquet", "PAR1 torn")
    with pytest.raises(DataError, match="pyarrow can't read it") as caught:
        read("cifar100", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_that_datasets_saved(arrow, read, tmp_path):
    import pyarrow as pa

    for split, many in (("train", 6), ("test", 3)):
        found = arrow({"text": [f"news {i}" for i in range(many)], "label": [i % 4 for i in range(many)]})
        place = tmp_path / split
        place.mkdir()
        with (
            pa.OSFile(str(place / "data-00000-of-00001.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, found.schema) as to,
        ):
            to.write_table(found)
        write(place / "state.json", "{}")
    write(tmp_path / "dataset_dict.json", '{"splits": ["train", "test"]}')
    made = read("ag-news", tmp_path)
    assert made.texts[6:] == ("news 0", "news 1", "news 2") and made.official.tolist() == [0] * 6 + [2] * 3
    assert set(hub_tables(tmp_path, "ag-news")) == {0, 2}


def test_every_set_that_is_read_from_a_folder_stands_in_the_docs():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "data-sets.md").read_text(encoding="utf-8")
    found = [name for name in registry.names("data set") if isinstance(registry.get("data set", name), FolderSet)]
    assert len(found) >= 17
    assert [name for name in found if f"`{name}`" not in page] == []
