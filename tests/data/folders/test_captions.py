"""Flickr30k, COCO, VQAv2 and a user's table, from miniatures in their formats on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
from miniatures import coco, flickr, picture, table, vqa, write

from edgefl.data.folders.vqa import normalise_answer
from edgefl.errors import DataError

# --- Flickr30k -------------------------------------------------------------------------------------------------------


def test_flickrs_captions_share_their_picture(read, tmp_path):
    flickr(tmp_path)
    made = read("flickr30k", tmp_path, 16)
    assert made.images.shape == (12, 3, 16, 16)
    assert made.image.tolist() == [i // 5 for i in range(60)] == made.group.tolist()
    assert made.texts[7] == "A dog , seen 2 times , in field 1 ."
    assert made.classes == () and made.official is None and not made.label.any()
    # a JPEG of one colour is that colour, give or take its rounding
    assert abs(made.images[4].astype(int) - np.array([148, 108, 212])[:, None, None]).max() <= 3


def flickr_csv(path, first, many, head=("image_name", " comment_number", " comment")):
    rows = [[f"{1000 + i}.jpg", f" {n}", f" Dog {n} , field {i} ."] for i in range(first, first + many) for n in (0, 1)]
    return table(path, [list(head), *rows], delimiter="|")


def test_fedcolas_split_comes_first(read, tmp_path):
    flickr(tmp_path)
    flickr_csv(tmp_path / "train.csv", 0, 6)
    flickr_csv(tmp_path / "test.csv", 6, 3)
    made = read("flickr30k", tmp_path, 8)
    assert made.official.tolist() == [0] * 12 + [2] * 6
    assert made.texts[0] == "Dog 0 , field 0 ."
    assert len(made.images) == 9  # others of the folder aren't read


def test_the_usual_copies_of_flickr(read, tmp_path):
    flickr(tmp_path)
    (tmp_path / "results_20130124.token").unlink()
    text = (
        'image_name| comment_number| comment\n1001.jpg| 0| A sign says " stop " , twice .\n1002.jpg| 4   A dog runs .\n'
    )
    write(tmp_path / "results.csv", text)
    assert read("flickr30k", tmp_path, 8).texts == ('A sign says " stop " , twice .', "A dog runs .")
    (tmp_path / "results.csv").unlink()
    write(tmp_path / "captions.txt", "image,caption\n1001.jpg,A dog, a cat, and a bird\n1001.jpg,Two animals\n")
    assert read("flickr30k", tmp_path, 8).texts == ("A dog, a cat, and a bird", "Two animals")
    raw = json.dumps(["One", "Two"])
    head = ["raw", "sentids", "split", "filename", "img_id"]
    table(
        tmp_path / "flickr_annotations_30k.csv",
        [head, [raw, "[0, 1]", "val", "1003.jpg", 3], [raw, "[2, 3]", "train", "1004.jpg", 4]],
    )
    made = read("flickr30k", tmp_path, 8)
    assert made.texts == ("One", "Two", "One", "Two") and made.official.tolist() == [1, 1, 0, 0]
    images = [{"filename": "1005.jpg", "split": "test", "sentences": [{"raw": "Three"}]},
              {"filename": "1006.jpg", "split": "train", "sentences": [{"raw": "Four"}]}]  # fmt: skip
    write(tmp_path / "dataset_flickr30k.json", json.dumps({"images": images, "dataset": "flickr30k"}))
    assert read("flickr30k", tmp_path, 8).official.tolist() == [2, 0]


def test_what_flickr_lacks_is_left_out_and_told(read, tmp_path):
    flickr(tmp_path, pictures=4)
    (tmp_path / "flickr30k-images" / "1001.jpg").unlink()
    write(tmp_path / "flickr30k-images" / "1002.jpg", picture(2)[:300])
    with (tmp_path / "results_20130124.token").open("a") as file:
        file.write("1003.jpg#5\t  \n1003.jpg#6\tA dog , seen 0 times , in field 3 .\n")
    made = read("flickr30k", tmp_path, 8)
    assert len(made.images) == 2 and made.image.tolist() == [0] * 5 + [1] * 5
    assert any("of 4 pictures: 1 missing (first: " in said and "1 unreadable" in said for said in read.said)
    assert read.said[-1] == (
        "flickr30k: of 22 samples, left out: 1 empty captions, 1 repeated captions, 10 captions without their picture"
    )


def test_flickr_without_pictures_or_with_another_table(read, tmp_path):
    write(tmp_path / "results_20130124.token", "1.jpg#0\tA dog\n")
    with pytest.raises(DataError, match=r"found results_20130124.token: no folder has pictures such as 1.jpg"):
        read("flickr30k", tmp_path)
    write(tmp_path / "results_20130124.token", "1.jpg A dog\n")
    with pytest.raises(DataError, match=r"token:1: expected picture#number, a tab and a caption"):
        read("flickr30k", tmp_path)
    (tmp_path / "results_20130124.token").unlink()
    write(tmp_path / "results.csv", "a,b,c\n")
    with pytest.raises(DataError, match=r"results.csv:1: expected the columns image_name, comment_number, comment"):
        read("flickr30k", tmp_path)


# --- COCO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", ["2017", "2014"])
def test_cocos_captions_stand_picture_after_picture(year, read, tmp_path):
    coco(tmp_path, year)
    made = read("coco", tmp_path, 8)
    assert made.images.shape == (12, 3, 8, 8)
    assert made.image.tolist() == [i // 5 for i in range(60)]
    assert made.texts[5:7] == ("Thing 101, view 0.", "Thing 101, view 1.")
    assert made.official.tolist() == [0] * 40 + [2] * 20


def test_the_smaller_coco_follows_the_papers_list(read, tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.data.folders.coco.FEW", {"coco-50k": 12, "coco-100k": 18})
    monkeypatch.setattr("edgefl.data.folders.coco.TESTED", 2)
    coco(tmp_path, "2014")
    made = read("coco-50k", tmp_path, 8)
    # without a list: the first captions in the order of the file, and two pictures to test on
    assert made.texts[:12] == tuple(f"Thing {100 + i // 5}, view {i % 5}." for i in range(12))
    assert np.bincount(made.official).tolist() == [12, 0, 10]
    assert [line.split(" has no ")[1].split(":")[0] for line in read.said if "has no" in line] == [
        "coco_train_ids.npy", "coco_test_ids.npy",
    ]  # fmt: skip
    larger = read("coco-100k", tmp_path, 8)
    assert larger.texts[:18] == tuple(f"Thing {100 + i // 5}, view {i % 5}." for i in range(18))
    assert np.bincount(larger.official).tolist() == [18, 0, 10]
    np.save(tmp_path / "coco_train_ids.npy", np.array([10015, 10003, 77, 10000]))
    np.save(tmp_path / "annotations" / "coco_test_ids.npy", np.array([90002.0, 90006.0, 90001.0, 90000.0]))
    made = read("coco-50k", tmp_path, 8)
    assert made.texts == ("Thing 107, view 1.", "Thing 103, view 0.", "Thing 100, view 0.",
                          "Thing 902, view 0.", "Thing 902, view 1.", "Thing 901, view 0.")  # fmt: skip
    np.save(tmp_path / "coco_train_ids.npy", np.array([{"a": 1}]))
    with pytest.raises(DataError, match="it can't be read as .npy of plain numbers"):
        read("coco-50k", tmp_path, 8)


def test_coco_laid_out_otherwise(read, tmp_path):
    coco(tmp_path)
    path = tmp_path / "annotations" / "captions_val2017.json"
    content = json.loads(path.read_text())
    for wrong, said in (
        ({"images": content["images"]}, "expected a list 'annotations' of entries with image_id, id, caption"),
        ({**content, "annotations": [{"image_id": 5, "id": 1, "caption": "x"}]}, "no caption belongs to a picture"),
        ([], "expected a list 'images'"),
    ):
        write(path, json.dumps(wrong))
        with pytest.raises(DataError, match=said):
            read("coco", tmp_path)
    write(path, '{"images": [\n}')
    with pytest.raises(DataError, match=r"captions_val2017.json:2: invalid JSON"):
        read("coco", tmp_path)


# --- VQAv2 -----------------------------------------------------------------------------------------------------------


def test_vqa_scores_answers_by_the_people_who_gave_them(read, tmp_path, monkeypatch):
    vqa(tmp_path)
    made = read("vqa-310", tmp_path, 8)
    # 18 questions: answered yes 5 times, no 5 times, blue and umbrella 4 times; equally frequent ones by the alphabet
    assert made.classes == ("no", "yes", "blue", "umbrella")
    assert made.label.tolist()[:4] == [1, 0, 2, 3]
    assert made.answer[:2].tolist() == [[1, -1], [0, 1]]
    assert made.score[:2] == pytest.approx(np.array([[1, 0], [1, 2 / 3]]))
    assert len(made.images) == 9 and made.image.tolist() == [i // 2 for i in range(18)]
    assert made.official.tolist() == [0] * 12 + [2] * 6
    assert read("vqa", tmp_path, 8).classes == made.classes == read("vqa-3000", tmp_path, 8).classes


def test_vqa_leaves_out_what_no_answer_fits(read, tmp_path):
    from edgefl.data.collection import FolderRequest
    from edgefl.data.folders.vqa import build, vqa_dataset

    vqa(tmp_path)
    (tmp_path / "scratch").mkdir()
    said: list[str] = []
    made = build(vqa_dataset("vqa"), 2, FolderRequest(8, tmp_path, said.append, tmp_path / "scratch"))
    assert made.classes == ("no", "yes") and len(made.label) == 10
    assert said[-1] == "vqa: of 18 samples, left out: 8 with none of the 2 answers"


def test_vqa_without_a_part_says_so(read, tmp_path):
    vqa(tmp_path)
    (tmp_path / "v2_mscoco_val2014_annotations.json").unlink()
    with pytest.raises(DataError, match=r"vqa: looked for .*: v2_mscoco_val2014_annotations.json is missing"):
        read("vqa", tmp_path)
    vqa(tmp_path)
    (tmp_path / "train2014").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="the folder train2014 is missing"):
        read("vqa", tmp_path)


@pytest.mark.parametrize(
    ("answer", "same"),
    [("The dog.", "dog"), ("Three", "3"), ("1,000", "1000"), ("3.5", "3.5"), ("yes!", "yes"), ("12:30", "12:30"),
     ("  A  red-brown  ", "red brown"), ("man's", "man's"), ("none", "0")],
)  # fmt: skip
def test_answers_are_compared_in_one_form(answer, same):
    assert normalise_answer(answer) == same == normalise_answer(same)


# --- a user's own table ----------------------------------------------------------------------------------------------


def test_a_table_of_everything(read, tmp_path):
    for i in range(3):
        write(tmp_path / "pictures" / f"{i}.png", picture(i, kind="PNG"))
    head = ["picture", "caption", "label", "split", "writer"]
    rows = [["pictures/0.png", "one", "b", "train", "ann"], ["pictures/0.png", "two", "b", "train", "bob"],
            ["pictures/1.png", "three", "", "Test", "ann"], ["pictures/2.png", " ", "a", "train", "cy"],
            ["pictures/9.png", "four", "a", "val", "cy"], ["pictures/2.png", "five", "a", "val", "cy"]]  # fmt: skip
    table(tmp_path / "mine.csv", [head, *rows])
    columns = {"image": "picture", "text": "caption", "client": "writer"}
    made = read("table", tmp_path, 4, **columns)
    assert made.texts == ("one", "two", "three", "five") and made.text.tolist() == [0, 1, 2, -1, 3]  # -1: none
    assert made.classes == ("a", "b") and made.label.tolist() == [1, 1, 2, 0, 0]  # 2: of no class
    assert made.image.tolist() == [0, 0, 1, 2, 2] and made.group.tolist() == [0, 0, 1, 2, 2]
    assert made.owner.tolist() == [0, 1, 0, 2, 2] and made.official.tolist() == [0, 0, 2, 0, 1]
    assert made.images[:, :, 0, 0].tolist() == [[0, 0, 0], [37, 91, 53], [74, 182, 106]]
    assert read.said[-4:] == [
        "table: of 6 samples, left out: 1 without their picture",
        "table: a row is of the kind whose columns it fills: 1 image, 4 image-text",
        "table: 1 of 5 rows have no label, so that they have no class",
        "table: 1 of 2 validation and test samples have the picture, text or group of a training sample, so that their "
        "scores are too good",
    ]
    assert read("table", tmp_path / "mine.csv", 4, **columns).texts == made.texts


def test_json_lines_with_labels_that_are_numbers(read, tmp_path):
    rows = [{"text": f"text {i}", "label": i % 11, "group": i // 2} for i in range(22)]
    write(tmp_path / "train.jsonl", "\n".join(map(json.dumps, rows[:20])))
    write(tmp_path / "test.jsonl", "\n".join(map(json.dumps, rows[20:])) + "\n\n")
    made = read("table", tmp_path)
    assert made.images is None and made.classes == tuple(map(str, range(11)))
    assert made.official.tolist() == [0] * 20 + [2] * 2
    assert made.group.tolist() == [i // 2 for i in range(22)]


@pytest.mark.parametrize(
    ("content", "columns", "said"),
    [
        ("text,label\na,b\n", {"txt": "text"}, "data.columns: unknown column 'txt'; did you mean 'text'"),
        ("text,label\na,b\n", {"text": "txt"}, "mine.csv: there is no column 'txt' for text; did you mean 'text'"),
        ("words,label\na,b\n", {}, "mine.csv: there is no column image or text, only 'words', 'label'; name yours"),
        ("a;b\n1;2\n", {}, "there is no column image or text, only 'a', 'b'; name yours"),
        ("text,label\nsweet, juicy apple,fruit\n", {}, "mine.csv:2: 3 fields under 2 columns; a field with ','"),
        ("text,label,label\na,b,c\n", {}, "mine.csv:1: 2 columns are named 'label': rename all but one"),
        ('text,label\n"a,b\nc,d\n', {}, "mine.csv:3: a double quote is never closed"),
        ("text,label\na,0\nb,0.0\n", {}, "the labels '0' and '0.0' are two, but seem to be one"),
        ("text,label\na,caf\u00e9\nb,cafe\u0301\n", {}, r"'cafe\\u0301' and 'caf\\xe9' are two, but seem to be one"),
        ("text,client\na,7\nb,7.0\n", {}, "the clients '7' and '7.0' are two, but seem to be one"),
        ("text,split\na,trian\n", {}, "mine.csv:2: unknown split 'trian'; did you mean 'train'"),
        ("text,client\na,\n", {}, "mine.csv:2: the client is empty"),
        ("text,label\n", {}, "has no rows"),
        ("text,label\nnan,b\n", {}, "has no rows with an image or a text"),
        ("text,label\n ,b\n", {}, "has no rows with an image or a text"),
        ("image,label\nx.png,b\n", {}, "none of 1 pictures can be read: 1 missing"),
    ],
)
def test_a_wrong_table_is_one_line(content, columns, said, read, tmp_path):
    write(tmp_path / "mine.csv", content)
    with pytest.raises(DataError, match=said) as caught:
        read("table", tmp_path, **columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_table_is_read_by_the_mark_between_its_columns(mark, read, tmp_path):
    write(
        tmp_path / "mine.csv", f"text{mark}label\r\none, two{mark}a\r\n\r\n{mark}\r\nthree{mark}NaN\r\nfour{mark}A\r\n"
    )
    made = read("table", tmp_path)
    assert made.texts == ("one, two", "three", "four") and made.label.tolist() == [1, 2, 0]
    assert read.said == [
        f"table: the fields of mine.csv are read as separated by {mark!r}",
        "table: 1 of 3 rows have no label, so that they have no class",
        "mine.csv: the labels 'A' and 'a' count as two; they differ in case or spaces",
    ]


def test_json_lines_may_lack_what_they_do_not_have(read, tmp_path):
    write(tmp_path / "p.png", picture(1, kind="PNG"))
    rows = [{"text": "a", "label": 1, "client": "x"}, {"image": "p.png", "label": 2, "client": "y"},
            {"text": "b", "client": "x"},
            {"text": float("nan"), "image": "p.png", "label": None, "client": "x"}]  # fmt: skip
    write(tmp_path / "mine.jsonl", "\n".join(map(json.dumps, rows)))
    made = read("table", tmp_path, 4)
    assert made.text.tolist() == [0, -1, 1, -1] and made.image.tolist() == [-1, 0, -1, 0]
    assert made.label.tolist() == [0, 1, 2, 2] and made.owner.tolist() == [0, 1, 0, 0]
    assert made.modality_bits.tolist() == [2, 1, 2, 1] and made.group.tolist() == [0, 1, 2, 1]
    write(tmp_path / "mine.jsonl", '{"text": ["a", "b"]}')
    with pytest.raises(DataError, match="mine.jsonl:1: text: expected text or a number, not \\['a', 'b'\\]"):
        read("table", tmp_path)


def test_two_tables_or_lines_that_are_no_objects(read, tmp_path):
    write(tmp_path / "a.jsonl", "[1]\n")
    with pytest.raises(DataError, match=r"a.jsonl:1: expected an object"):
        read("table", tmp_path)
    write(tmp_path / "b.csv", "text\na\n")
    with pytest.raises(DataError, match="2 tables: name one of them with data.folders"):
        read("table", tmp_path)
