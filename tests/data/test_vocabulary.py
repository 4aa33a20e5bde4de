from __future__ import annotations

import subprocess
import sys
import unicodedata

from edgefl.data.vocabulary import SPECIAL, encoded, train_wordpiece

CORPUS = [unicodedata.name(chr(code), "") or "space" for code in range(0x20, 0x600)]


def test_training_is_a_function_of_the_texts():
    # tokenizers' own trainer differs from process to process: hash maps with random seeds.
    program = (
        "import unicodedata; from edgefl.data.vocabulary import train_wordpiece;"
        "corpus = [unicodedata.name(chr(code), '') or 'space' for code in range(0x20, 0x600)];"
        "print(train_wordpiece(corpus, 400, 12).to_str())"
    )
    here = train_wordpiece(reversed(CORPUS), 400, 12).to_str()
    for _ in range(3):
        there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert there.strip() == here


def test_special_pieces_come_first_and_texts_are_cut_and_padded():
    tokenizer = train_wordpiece(CORPUS, 400, 6)
    assert [tokenizer.token_to_id(piece) for piece in SPECIAL] == [0, 1, 2]
    assert tokenizer.get_vocab_size() == 400
    rows = encoded(tokenizer, ["", "LATIN", "latin small letter a with diaeresis and macron and more"], 6)
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
