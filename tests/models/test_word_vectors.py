"""Word vectors of a published text file: which tokens take them, in a client's model and the server's; refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensors import assert_equal_tensors

import edgefl
from edgefl.cells.needs import check
from edgefl.errors import EdgeflError, MethodError
from edgefl.models.word_vectors import read_vectors
from edgefl.scenario import load
from edgefl.setup.compose import compose

Tiny = Callable[..., dict[str, Any]]
TOKENS = {"[PAD]": 0, "[UNK]": 1, "the": 2, "play": 3, "##ing": 4, ".": 5, "café": 6, "3": 7}
GLOVE = """the 0.1 -0.2 0.3
, 9 9 9
play 1e-3 2 -3
. . . 7 7 7
the 5 5 5
at name@domain.com 8 8 8
café 1 2 3
ing 4 4 4
"""


def write(folder: Path, text: str) -> str:
    (folder / "glove.txt").write_text(text, encoding="utf-8")
    return str(folder / "glove.txt")


def test_tokens_that_are_words_take_their_vectors(tmp_path: Path) -> None:
    """Neither a piece within a word, nor a token that is only the first of several words; the first line counts."""
    expected = {2: [0.1, -0.2, 0.3], 3: [1e-3, 2, -3], 6: [1, 2, 3]}
    for text in (GLOVE, f"8 3\n{GLOVE}", GLOVE.replace("\n", " \r\n")):
        ids, vectors = read_vectors(write(tmp_path, text), TOKENS, 3)
        assert vectors.dtype == "float32" and dict(zip(ids, vectors.tolist(), strict=True)) == {
            index: pytest.approx(values) for index, values in expected.items()
        }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("the 1 2\n", r"glove\.txt:1: 2 numbers, but the tower's embedding has 3"),
        ("the 1 2 3 4\n", r"glove\.txt:1: 4 numbers, but the tower's embedding has 3"),
        (", 1 2 3\nthe 1 2\n", r"glove\.txt:2: a word needs 3 finite numbers behind it"),
        (", 1 2 3\nplay 1 nan 3\n", r"glove\.txt:2: a word needs 3 finite numbers behind it"),
        (", 1 2 3\n\nplay 1 2 x\n", r"glove\.txt:3: not a word and its numbers \(could not convert"),
        (", 1 2 3\ning 1 2 3\n", r"glove\.txt: no word of it is one of the 8 tokens of data\.vocabulary"),
        ("", "no word of it is one of the 8 tokens"),
    ],
    ids=["narrow", "wide", "short", "nan", "text", "none", "empty"],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        read_vectors(write(tmp_path, text), TOKENS, 3)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(MethodError, match=r"can't be read \((No such file|Is a directory)"):
            read_vectors(str(path), TOKENS, 3)


def scenario(tiny: Tiny, vectors: str | None, **more: Any) -> dict[str, Any]:
    gru = {"tower": "gru", "embedding": 4, "hidden": 4, "tokens": 6, "vectors": vectors}
    data = {"source": "names", "clients": {"text": 2}, "samples": 24, "validation": 20, "test": 20, "vocabulary": 100}
    return tiny(data=data, model={"text": gru}, **more)


def test_a_run_begins_with_them(tiny: Tiny, tmp_path: Path) -> None:
    plain = compose(load(scenario(tiny, None)))
    tokens = plain.method.setting.token_ids()
    words = sorted(word for word in tokens if word.isalpha())[:3]
    file = write(tmp_path, "".join(f"{word} {i} 0.5 -1 2\n" for i, word in enumerate(words)))
    given = scenario(tiny, file)
    before, after = (compose(load(each)).method.initial(1).tensors for each in (scenario(tiny, None), given))
    name = "text/text.embedding.weight"
    expected = before[name].clone()
    for i, word in enumerate(words):
        expected[tokens[word]] = torch.tensor([i, 0.5, -1, 2])
    assert_equal_tensors(after[name], expected)
    assert all(torch.equal(before[other], after[other]) for other in before if other != name)
    assert edgefl.profile(given)["rows"] == edgefl.profile(scenario(tiny, None))["rows"]
    told: list[str] = []
    check(load(given), told.append, tmp_path)
    assert f"3 of {len(tokens):,} tokens are words of {file}, the others start at random" in told


def test_another_width_is_found_before_a_run(tiny: Tiny, tmp_path: Path) -> None:
    file = write(tmp_path, GLOVE)
    with pytest.raises(EdgeflError, match=r"model\.text\.vectors: vectors .*glove\.txt:1: 3 numbers, .* has 4"):
        edgefl.run(scenario(tiny, file), out=tmp_path / "run")
    with pytest.raises(EdgeflError, match=r"model\.text\.vectors"):
        load({**scenario(tiny, None), "model": {"text": {"tower": "transformer", "vectors": file}}})
