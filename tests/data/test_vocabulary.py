from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

import edgefl
from edgefl.data.vocabulary import (
    SPECIAL,
    character_tokenizer,
    encode_texts,
    ready_tokenizer,
    tokenizer_file,
    train_wordpiece,
)
from edgefl.errors import DataError

CORPUS = [unicodedata.name(chr(code), "") or "space" for code in range(0x20, 0x600)]


@pytest.mark.slow(smaller="test_letters_inside_words_are_pieces_and_not_special")
def test_training_is_a_function_of_the_texts():
    # tokenizers' own trainer differs from call to call, and from process to process: hash maps with random seeds.
    program = (
        "import unicodedata; from edgefl.data.vocabulary import train_wordpiece;"
        "corpus = [unicodedata.name(chr(code), '') or 'space' for code in range(0x20, 0x600)];"
        "print(train_wordpiece(corpus, 400, 12).to_str())"
    )
    here = train_wordpiece(reversed(CORPUS), 400, 12).to_str()
    assert train_wordpiece(CORPUS, 400, 12).to_str() == here
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert there.strip() == here


def test_nothing_is_learnt_from_a_word_that_is_unknown_for_its_length() -> None:
    """200,000 letters took over 10 s, because training takes the square of a word's length."""
    texts, longest, longer = ["one two", "two three"], "y" * 100, "z" * 200_000
    learnt = train_wordpiece([*texts, longest], 300, 8)
    assert train_wordpiece([*texts, longest, longer], 300, 8).get_vocab() == learnt.get_vocab()
    assert train_wordpiece([*texts, f"{longest} {longer}"], 300, 8).get_vocab() == learnt.get_vocab()
    assert "##y" in learnt.get_vocab() and "##z" not in learnt.get_vocab()
    assert learnt.encode(f"{longest}y").tokens[1] == "[UNK]" != learnt.encode(longest).tokens[1]


def test_special_pieces_come_first_and_texts_are_cut_and_padded():
    tokenizer = train_wordpiece(CORPUS, 400, 6)
    assert [tokenizer.token_to_id(piece) for piece in SPECIAL] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == 400
    rows = encode_texts(tokenizer, ["", "LATIN", "latin small letter a with diaeresis and macron and more"], 6)
    assert rows.shape == (3, 6)
    assert rows[0].tolist() == [2, 0, 0, 0, 0, 0]
    assert rows[1].tolist() == [2, tokenizer.token_to_id("latin"), 0, 0, 0, 0]
    assert (rows[2] != 0).all()
    assert rows.max() < 400


def test_letters_inside_words_are_pieces_and_not_special():
    tokenizer = train_wordpiece(CORPUS, 400, 8)
    assert "##a" in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer.encode("zzaz").ids) != ""
    assert all(piece in SPECIAL for piece in (token.content for token in tokenizer.get_added_tokens_decoder().values()))


def test_a_ready_tokenizer_is_padded_and_cut_anew(tmp_path: Path) -> None:
    train_wordpiece(["one two three", "four five"], 60, 8).save(str(tmp_path / "tokenizer.json"))
    for named in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = ready_tokenizer(tokenizer_file(str(named)), 3)
        rows = encode_texts(tokenizer, ["one", "one two three four"], 3)
        assert rows.shape == (2, 3) and rows[0, 2] == 0 and rows[1].all()


def test_a_tokenizer_like_xlm_rs_pads_with_its_own_token(tmp_path: Path) -> None:
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4}
    Tokenizer(models.WordLevel(words, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    made = ready_tokenizer(tmp_path / "tokenizer.json", 3)
    assert encode_texts(made, ["a", "b"], 3).tolist() == [[4, 1, 1], [3, 1, 1]]
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "bare.json"))
    with pytest.raises(DataError, match=r"has no \[PAD\] or <pad> token"):
        ready_tokenizer(tmp_path / "bare.json", 3)


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"there is no file .*nothing.json; allowed: a size such as 1000, characters, minilm"
    ):
        tokenizer_file(str(tmp_path / "nothing.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer of the tokenizers library"):
        ready_tokenizer(tmp_path / "tokenizer.json", 4)


@pytest.mark.slow(smaller="test_a_ready_tokenizer_is_padded_and_cut_anew")
def test_minilm_trains_with_its_own_tokenizer(tmp_path: Path) -> None:
    scenario = {
        "data": {"source": "names", "clients": {"text": 2}, "vocabulary": "minilm", "samples": 16},
        "model": {"text": {"tower": "bert", "weights": "minilm", "tokens": 12, "read": "mean"}},
        "schedule": {"name": "layerwise", "stages": 3, "rounds": 1, "allocation": [0, 0, 1]},
        "training": {"batch": 8},
        "round": {"cohort": 1},
    }
    done = edgefl.run(scenario, out=tmp_path / "run")
    assert done.clients["memory_error"].dropna().abs().max() == 0
    assert done.model("text").text.embedding.word_embeddings.weight.shape == (30522, 384)


def test_each_character_is_a_token_in_both_cases_with_spaces_and_line_ends():
    tokenizer = character_tokenizer(["Ab a\n", "b"], 8)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "\n": 3, " ": 4, "A": 5, "a": 6, "b": 7}
    assert encode_texts(tokenizer, ["Aa b\nX", "bbbbbbbbbb"], 8).tolist() == [
        [2, 5, 6, 4, 7, 3, 1, 0],
        [2, 7, 7, 7, 7, 7, 7, 7],
    ]
