"""The blueprint of a described model: one module on the meta device for all who only read it."""

from __future__ import annotations

from edgefl_toys import described

from edgefl import models


def test_equal_descriptions_share_one_module() -> None:
    shared = models.blueprint(described(blocks=3))
    assert models.blueprint(described(blocks=3)) is shared
    assert models.blueprint(described(blocks=2)) is not shared
    built = models.build(described(blocks=3))
    assert [(n, t.shape, t.dtype) for n, t in shared.state_dict().items()] == [
        (n, t.shape, t.dtype) for n, t in built.state_dict().items()
    ]
    assert all(tensor.is_meta for tensor in shared.state_dict().values())
