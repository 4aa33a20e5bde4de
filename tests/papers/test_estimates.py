"""Predictions beside strangers' measurements: what has to be equal, closed forms of what is shown, sums of tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgefl.models.towers.vision import import_torchvision
from tools.paper_tables import estimates, source_steps
from tools.paper_tables.page_tables import Committed, committed_tables, differences, numbers, pages_folder
from tools.paper_tables.profiles import Profiles
from tools.paper_tables.source_steps import (
    AdamOf2_0,
    Litgpt,
    SourceStep,
    adamw,
    bert,
    image_loss,
    images,
    litgpt,
    text_loss,
    texts,
    torchvision_vit,
)
from tools.paper_tables.strangers import LITGPT_RUNS, PEFT_RUNS, STEP_RUNS, TORCHTUNE_STEPS

WIDTH, LAYERS, HIDDEN, KEYS, VOCABULARY = 3072, 28, 8192, 1024, 128_256
BASE = 3_212_749_824


def committed(name: str) -> list[dict[str, str]]:
    """Rows of the page's table whose header has a cell, by column."""
    pages = committed_tables((pages_folder() / "estimates.md").read_text(encoding="utf-8"))
    table: Committed = next(table for table in pages if name in table.header)
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_parameters_and_bytes_of_files_are_the_published_ones() -> None:
    made = estimates.exact()
    for run in PEFT_RUNS:
        assert estimates.trainable_size(run) == (run.parameters, run.file_bytes)
    old = committed_tables((pages_folder() / "estimates.md").read_text(encoding="utf-8"))[0]
    assert list(differences(made, old)) == []
    # LoRA by hand: rank (in + out) of each layer
    q_and_v = LAYERS * 32 * (2 * WIDTH + WIDTH + KEYS)
    assert [run.parameters for run in PEFT_RUNS] == [BASE, q_and_v, LAYERS * 10 * 3 * (WIDTH + HIDDEN)]


def test_a_token_holds_its_scores_and_the_keys_and_values_of_all_layers() -> None:
    """By hand, in bfloat16; and a small model of the library really holds as much after a backward pass."""
    assert estimates.held_per_token() == (2 * VOCABULARY, 2 * LAYERS * 2 * KEYS)
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).bfloat16().train()
    x = torch.zeros(3, 8, dtype=torch.int64)
    out = model(input_ids=x, labels=x)
    out.loss.backward()
    held = {out.logits.untyped_storage()._cdata: out.logits.untyped_storage().nbytes()}
    for layer in out.past_key_values.layers:
        held |= {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in (layer.keys, layer.values)}
    assert sum(held.values()) == x.numel() * 2 * (50 + 2 * 2 * 16)


def test_padding_is_the_slope_of_numpy() -> None:
    """By least squares written out, and within what a batch of four texts can have."""
    import numpy as np

    x, y = np.array([(window.tokens / 250, window.allocated) for window in estimates.PEFT_WINDOWS]).T
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    held = 2 * VOCABULARY + 2 * LAYERS * 2 * KEYS
    assert estimates.padded_tokens() == pytest.approx(slope / held * x.mean(), rel=1e-9)
    assert x.mean() < estimates.padded_tokens() < 4 * 768


def test_what_is_allocated_after_a_step_is_a_sum_of_whole_tensors() -> None:
    """Two bytes for a weight of the base, four for each of an adapter's, its gradient and its two states."""
    for run, row in zip(PEFT_RUNS, committed("allocated, published"), strict=True):
        adapter = 0 if run.adapter == "none" else run.parameters
        size = 4 if adapter else 2
        weights, rest = 2 * BASE + 4 * adapter, size * run.parameters
        shown = [numbers(row[name])[0] for name in ("weights", "gradients", "states", "sum")]
        # states have a count of steps for each tensor, which the allocator gives 512 bytes
        assert shown == pytest.approx([v / 2**20 for v in (weights, rest, 2 * rest, weights + 3 * rest)], abs=0.2)
        remainder, left = (numbers(row[name])[0] for name in ("remainder", "left"))
        assert remainder == pytest.approx(run.allocated - shown[3], abs=0.11)
        held = sum(numbers(row[name])[0] for name in ("scores held", "keys and values held"))
        assert left == pytest.approx(remainder - held, abs=0.16)


def test_every_row_of_torchtunes_table_is_predicted_or_told() -> None:
    predicted = estimates.overrides_of_steps()
    for step, row in zip(TORCHTUNE_STEPS, committed("to the predicted row before"), strict=True):
        assert row["GiB"] == step.name and numbers(row["published"]) == [step.peak]
        assert ("not predicted" in row["edgefl"]) == (step.name not in predicted)
    assert predicted["checkpointing"] == (*estimates.SETTING, *estimates.SMALL_LOSS)
    assert "training.step_in_backward=true" not in predicted["LoRA"]


SMALL_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
              "vocab_size": 100, "max_position_embeddings": 24}  # fmt: skip
SMALL_VIT = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
SCORES = 3 * 2 * 2 * 24**2 * 4
"""Bytes of the scores of two layers with two heads, for three texts of 24 tokens."""


def small_text(**more: Any) -> SourceStep:
    return SourceStep(bert(more.pop("checkpointing", False), **SMALL_BERT), texts(3, 24), text_loss, adamw, **more)


def small_image(size: int = 4, **more: Any) -> SourceStep:
    return SourceStep(torchvision_vit(**SMALL_VIT), images(size, pixels=32), image_loss, AdamOf2_0, **more)


def size_of(step: SourceStep) -> int:
    return sum(p.numel() * 4 for p in step.build().parameters())


@pytest.mark.parametrize(
    "step",
    [
        small_text(), small_text(gradients="always", softmax_input=True, averaged=True),
        small_text(gradients="always", softmax_input=True, checkpointing=True, accumulation=2),
        small_image(gradients="forward"), small_image(gradients="forward", accumulation=2),
        litgpt(2, 40, width=32, blocks=2, heads=2, vocabulary=300),
    ],
)  # fmt: skip
def test_a_sources_step_takes_of_a_real_allocator_what_its_storages_take(step: SourceStep) -> None:
    """The rest is kernels' scratch, of convolutions above all."""
    assert source_steps.live_peak(step) == pytest.approx(source_steps.real_peak(step), rel=0.02)


def test_what_old_programs_keep_has_its_size() -> None:
    """The scores before the softmax; gradients of zero, and gradients until the next backward pass; a second copy."""
    plain, keeping, zeros, averaged = (
        source_steps.live_peak(small_text(**more))
        for more in ({}, {"softmax_input": True}, {"gradients": "always"}, {"averaged": True})
    )
    size = size_of(small_text())
    assert keeping - plain == pytest.approx(SCORES, rel=0.02)
    assert 0.9 * size < zeros - plain <= size  # the head's are there at the peak anyway
    assert averaged - plain == size
    freed, late = (source_steps.live_peak(small_image(64, gradients=when)) for when in ("step", "forward"))
    assert 0.9 * size_of(small_image()) < late - freed <= size_of(small_image())


def test_most_steps_are_within_a_twentieth_of_what_was_published() -> None:
    """As the page says, all but Mesa's, two in bfloat16 and one of a round figure."""
    rows, overrides = committed("with what its program keeps"), estimates.overrides_of_runs()
    assert [row["MiB"] for row in rows] == [run.name for run in STEP_RUNS] == list(overrides)
    assert [numbers(row["published"])[0] for row in rows] == [round(run.mib) for run in STEP_RUNS]
    near = {
        row["MiB"] for row in rows if abs(numbers(row["that to published"] or row["ours to published"])[0] - 1) <= 0.05
    }
    assert len(near) == 12
    assert all("Mesa" in name or "bfloat16" in name or "LoRA" in name for name in {*overrides} - near)


def test_litgpts_own_step_is_within_a_twentieth() -> None:
    rows = committed("with what litgpt keeps")
    assert len(rows) == len(LITGPT_RUNS) + 1
    assert all(abs(numbers(row["that to published"])[0] - 1) < 0.05 for row in rows if row["that to published"])


def test_litgpts_adapters_have_the_published_parameters() -> None:
    with torch.device("meta"):
        model = Litgpt()
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 1_572_864
    assert sum(p.numel() for p in model.parameters()) == 1_418_270_720 + 1_572_864


@pytest.mark.slow(smaller="test_every_row_of_torchtunes_table_is_predicted_or_told")
def test_phi_is_in_bfloat16_and_takes_up_to_an_eighth_less_than_litgpts() -> None:
    """Nothing was fitted to the published peaks."""
    profiles = Profiles()
    for run in LITGPT_RUNS[:3]:
        (row,) = profiles.profile_of(estimates.PHI, f"training.batch={run.batch}").rows
        assert 7 / 8 < row.live_memory_bytes / 1e9 / run.peak < 1
        assert row.upload_bytes == 2 * 1_572_864
