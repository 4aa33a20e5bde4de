"""Published word vectors, such as GloVe's text files, as first values of a text tower's embedding.

Each line is a word and its numbers, with spaces between them.  A token of the vocabulary that is a word of the file
takes its vector: a whole word, or the piece that a longer word begins with.  All others start as without a file:
pieces within words (``##ing``), special tokens, and words that the file lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edgefl.errors import MethodError


def read_vectors(source: str, tokens: Mapping[str, int], width: int) -> tuple[list[int], NDArray[np.float32]]:
    """The ids of the tokens that are words of a file, and their vectors ``[tokens, width]``.

    Raises MethodError, with file and line, for a file that can't be read, for a line of another width or with something
    else than numbers, and if no token is a word of the file.
    """
    file = Path(source).expanduser()
    wanted, rows = {token.encode(): index for token, index in tokens.items()}, dict[int, list[float]]()
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                word = line.partition(b" ")[0]
                if number == 1 and (length := len(line.split())) != width + 1:
                    if length == 2:  # files of fastText begin with their numbers of words and of dimensions
                        continue
                    raise MethodError(f"vectors {file}:1: {length - 1} numbers, but the tower's embedding has {width}")
                if word not in wanted:
                    continue
                whole, *numbers = line.rsplit(maxsplit=width)
                values = [float(each) for each in numbers]
                if whole == word and (len(values) < width or not all(map(isfinite, values))):
                    raise MethodError(f"vectors {file}:{number}: a word needs {width} finite numbers behind it")
                if whole == word:  # else it is the first of several words with one vector
                    rows.setdefault(wanted[word], values)
    except OSError as error:
        raise MethodError(f"vectors {source!r}: {file} can't be read ({error.strerror})") from error
    except ValueError as error:
        raise MethodError(f"vectors {file}:{number}: not a word and its numbers ({error})") from error
    if not rows:
        raise MethodError(f"vectors {file}: no word of it is one of the {len(tokens):,} tokens of data.vocabulary")
    return list(rows), np.array(list(rows.values()), np.float32)


def load_vectors(embedding: nn.Module, source: str, token_ids: Callable[[], Mapping[str, int]]) -> None:
    """Give an embedding ``[vocabulary, width]`` the vectors of a file; one on the meta device is left as it is.

    Raises MethodError as ``read_vectors``.
    """
    weight = cast(nn.Embedding, embedding).weight
    if not weight.is_meta:
        ids, vectors = read_vectors(source, token_ids(), weight.shape[1])
        with torch.no_grad():
            weight[ids] = torch.from_numpy(vectors).to(weight)
