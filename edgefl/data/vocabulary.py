"""Tokenizers: a small WordPiece that is trained on the training texts only, or one that comes with weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from edgefl.data.collection import check_fits
from edgefl.errors import DataError
from edgefl.models.weights import minilm_folder

SPECIAL = ("[PAD]", "[UNK]", "[CLS]")
ENCODED_AT_ONCE = 4096
"""Texts that the library encodes at a time: it holds 8 kB for each of 80 tokens, and 4 million fill 30 GB."""
LONGEST = 100
"""Characters of a word beyond which WordPiece takes it for unknown.  Nothing is learnt from such words,
because training takes the square of a word's length: 200,000 letters took over 10 s."""
PADDING = ("[PAD]", "<pad>")
"""Names of the padding: BERT's, and that of XLM-R, which BEiT-3's tokenizer is like."""


def train_wordpiece(texts: Iterable[str], vocabulary: int, tokens: int) -> Tokenizer:
    """Train a lower-casing WordPiece of at most ``vocabulary`` entries; it adds [CLS], pads and cuts to ``tokens``."""
    tokenizer = _empty(models.WordPiece(unk_token="[UNK]"))
    corpus, words = list[str](), set[str]()
    for text in sorted(texts):
        whole = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]
        short = [word for word in whole if len(word) <= LONGEST]
        corpus.append(text if len(short) == len(whole) else " ".join(short))
        words.update(short)
    # The trainer numbers the pieces "##x" in the order of a randomly seeded hash map and breaks ties between merges by
    # number, so two trainings differ.  Listing the pieces beforehand fixes their numbers, and the vocabulary depends
    # on the texts alone.
    inner = [f"##{letter}" for letter in sorted({letter for word in words for letter in word[1:]})]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL, *inner], show_progress=False, continuing_subword_prefix="##"
    )
    with _one_thread():
        tokenizer.train_from_iterator(corpus, trainer)
    learnt = models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=LONGEST)
    return _finish_tokenizer(_empty(learnt), tokens)


def character_tokenizer(texts: Iterable[str], tokens: int) -> Tokenizer:
    """Each character of the texts is a token, in upper and lower case; it adds [CLS], pads and cuts to ``tokens``."""
    vocabulary = [*SPECIAL, *sorted(set[str]().union(*texts))]
    model = models.WordLevel({token: number for number, token in enumerate(vocabulary)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return _finish_tokenizer(tokenizer, tokens)


def _finish_tokenizer(tokenizer: Tokenizer, tokens: int) -> Tokenizer:
    """The tokenizer with [CLS] before a text, padded and cut to ``tokens``."""
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", SPECIAL.index("[CLS]"))]
    )
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=SPECIAL.index("[PAD]"), pad_token="[PAD]")
    return tokenizer


def tokenizer_file(source: str) -> Path:
    """The ``tokenizer.json`` of ``minilm``, of a folder, or at a path.  Raises DataError if there is no such file."""
    path = minilm_folder() if source == "minilm" else Path(source).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise DataError(
            f"data.vocabulary {source!r}: there is no file {path}; "
            "allowed: a size such as 1000, characters, minilm, or the path of a tokenizer.json"
        )
    return path


def ready_tokenizer(path: Path, tokens: int) -> Tokenizer:
    """Load a trained tokenizer that pads and cuts to ``tokens``.  Raises DataError for an invalid file."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise DataError(f"{path} is not a tokenizer of the tokenizers library: {error}") from error
    padding = next((token for token in PADDING if tokenizer.token_to_id(token) is not None), None)
    if padding is None:
        raise DataError(f"{path} has no {' or '.join(PADDING)} token, so texts can't be padded to one length")
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=tokenizer.token_to_id(padding), pad_token=padding)
    return tokenizer


def _empty(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> npt.NDArray[np.int32]:
    """Token ids [texts, tokens]."""
    check_fits((len(texts), tokens), f"{len(texts):,} texts of {tokens:,} tokens", bytes_each=4)
    out = np.zeros((len(texts), tokens), np.int32)
    with _one_thread():
        for start in range(0, len(texts), ENCODED_AT_ONCE):
            batch = tokenizer.encode_batch(list(texts[start : start + ENCODED_AT_ONCE]))
            out[start : start + len(batch)] = [encoding.ids for encoding in batch]
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    """Disable the tokenizer's thread pool: a process that has used it warns when it forks."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
