"""A small WordPiece, trained on the texts that clients train on and on no others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]")


def train_wordpiece(texts: Iterable[str], vocabulary: int, tokens: int) -> Tokenizer:
    """A lower-casing WordPiece of at most ``vocabulary`` entries: [CLS] first, padded and cut to ``tokens``."""
    corpus = sorted(texts)
    tokenizer = _empty(models.WordPiece(unk_token="[UNK]"))
    # The trainer numbers the pieces "##x" in the order of a randomly seeded hash map and breaks ties between merges by
    # number, so two trainings differ.  Named beforehand they have their numbers; the vocabulary is then a function of
    # the texts alone.
    words = {
        word
        for text in corpus
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
    }
    inner = [f"##{letter}" for letter in sorted({letter for word in words for letter in word[1:]})]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL, *inner], show_progress=False, continuing_subword_prefix="##"
    )
    with _one_thread():
        tokenizer.train_from_iterator(corpus, trainer)
    tokenizer = _empty(models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", SPECIAL.index("[CLS]"))]
    )
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=SPECIAL.index("[PAD]"), pad_token="[PAD]")
    return tokenizer


def _empty(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def encoded(tokenizer: Tokenizer, texts: Sequence[str], tokens: int) -> npt.NDArray[np.int32]:
    """Token ids [texts, tokens]."""
    out = np.zeros((len(texts), tokens), np.int32)
    with _one_thread():
        for row, encoding in enumerate(tokenizer.encode_batch(list(texts))):
            out[row] = encoding.ids
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the tokenizer's thread pool asleep: a process that has used it warns when it forks."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
