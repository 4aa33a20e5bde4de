"""The two halves of a split model: the client's embeddings and first blocks, and the rest, which is the server's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

Half = Literal["first", "last"]


def in_first_half(name: str, cut: Mapping[str, int]) -> bool:
    """Whether the client holds a parameter or buffer of this name, if each tower is cut after so many blocks."""
    tower, part, block = (*name.split("."), "", "")[:3]
    return tower in cut and (part == "embedding" or (part == "blocks" and int(block) < cut[tower]))


def drop_other_half(module: nn.Module, half: Half, cut: Mapping[str, int]) -> None:
    """Take out of a whole module the parameters and buffers that this half of it doesn't compute with.

    The last half keeps an embedding's rows if they read the scores, because both halves then hold them.
    """
    kept = _tensors_beside(module, cut) if half == "last" else set()
    persistent = module.state_dict().keys()
    for path, part in module.named_modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                full = f"{path}.{name}" if path else name
                if tensor is None or (held is part._buffers and full not in persistent):
                    continue
                # by identity: the module holds what is kept
                if in_first_half(full, cut) is (half == "last") and id(tensor) not in kept:
                    held[name] = None


def _tensors_beside(module: nn.Module, cut: Mapping[str, int]) -> set[int]:
    """The identities of the first half's tensors that the last half computes with too.

    A model of transformers runs its embedding also if it is given embedded tokens, only not the token's own rows.
    """
    kept = set[int]()
    for tower in cut:
        own: Any = module.get_submodule(tower)
        if hasattr(own.embedding, "get_input_embeddings"):
            # by identity: the module holds them
            kept |= {id(each) for each in own.embedding.parameters()}
            kept -= {id(each) for each in own.embedding.get_input_embeddings().parameters()}
    return kept | shared_rows(module, cut)


def shared_rows(module: nn.Module, cut: Mapping[str, int]) -> set[int]:
    """The identities of the rows of embeddings by which a tower reads its scores of the next token."""
    towers: list[Any] = [module.get_submodule(name) for name in cut]
    tied = (tower for tower in towers if hasattr(tower, "scores") and not hasattr(tower, "head"))
    return {id(each) for tower in tied for each in tower.embedding.get_input_embeddings().parameters()}
