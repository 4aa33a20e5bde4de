"""docs/evidence/papers/estimates.md: predicted memory beside what others measured of their own training."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch

from edgefl import models
from edgefl.models import peft_folder
from edgefl.models.model import Model
from edgefl.models.towers.library_model import quiet
from edgefl.scenario import load
from edgefl.setup.compose import compose
from tools.paper_tables.page_tables import CopiedCell, PageTable, mib, ratio
from tools.paper_tables.profiles import Profiles
from tools.paper_tables.source_steps import MESA_NETS, litgpt, memory, source_steps
from tools.paper_tables.strangers import (
    CONTEXT,
    LITGPT_RUNS,
    NET_RUNS,
    PEFT_RUNS,
    PEFT_WINDOWS,
    PHONE_BATCHES,
    PHONE_RUNS,
    STEP_RUNS,
    TORCHTUNE_STEPS,
    WINDOW_STEPS,
    LitgptRun,
    PeftRun,
)

LLAMA, PHI, NETS = "estimates-llama", "estimates-phi", "estimates-nets"
RESERVED_AT_START = 2 * 2**20
"""PEFT's script subtracts what the allocator reserves for a first small tensor: its smallest segment."""
LORA = (
    "adapter={name: lora, rank: 64, parts: [q_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], "
    "dtype: bfloat16, also: []}"
)


@dataclass(frozen=True)
class TorchtuneRow:
    """What a row of torchtune's table has here: overrides of the scenario, or why it isn't predicted.

    ``after`` says that the overrides come on top of those of the predicted rows before; else of the chunks and
    checkpoints alone.
    """

    overrides: tuple[str, ...] = ()
    lacks: str = ""
    after: bool = True


SETTING = (
    "model.text.tokens=4096", "training.batch=2", "training.implementation=fused", "training.clip=null",
    "training.weight_decay=0.01",
)  # fmt: skip
SMALL_LOSS = ("training.loss_chunk=1024", "training.checkpointing=true")
STEPS = {
    "packed": TorchtuneRow(SETTING),
    "compiled": TorchtuneRow(lacks="not predicted: torch's compiler decides what is kept"),
    "loss in chunks": TorchtuneRow(SMALL_LOSS[:1]),
    "checkpointing": TorchtuneRow(SMALL_LOSS[1:]),
    "step in backward": TorchtuneRow(("training.step_in_backward=true",)),
    "activations offloaded": TorchtuneRow(lacks="not predicted: no such option"),
    "8-bit AdamW": TorchtuneRow(("training.optimizer=adamw-8bit",)),
    "LoRA": TorchtuneRow((*SETTING, *SMALL_LOSS, LORA), after=False),
    "QLoRA": TorchtuneRow((*SETTING, *SMALL_LOSS, LORA, "model.text.quantize=nf4"), after=False),
}
"""torchtune cuts a sequence into 8 chunks: 2 x 512 tokens."""


def tables(profiles: Profiles) -> list[PageTable]:
    """The page's tables."""
    return [
        exact(),
        _allocation_table(profiles),
        _peaks(profiles),
        _torchtune(profiles),
        _litgpt(profiles),
        _steps(profiles),
        _nets(profiles),
        _phones(profiles),
    ]


# --- PEFT ------------------------------------------------------------------------------------------------------------


def trainable_size(run: PeftRun) -> tuple[int, int]:
    """Parameters that train, and bytes of the file that holds them; nothing is predicted.

    PEFT's script writes no file of a whole model: it multiplies the parameters by the bytes of one.
    """
    work = compose(load(f"papers/{LLAMA}", [f"adapter={run.adapter}"]), trains=False).method.client_work("text", 1)
    parameters = sum(prod(item.shape) for payload in work.up for item in payload.items)
    if run.adapter == "none":
        return parameters, sum(payload.tensor_bytes for payload in work.up)
    return parameters, peft_folder.adapter_bytes(cast(Model, models.on_meta(work.model)), "text")


def exact() -> PageTable:
    """What is to be equal: trained parameters and bytes of files."""
    rows = []
    for run in PEFT_RUNS:
        parameters, size = trainable_size(run)
        published = CopiedCell(f"{run.parameters:,}"), CopiedCell(f"{run.file_bytes:,}")
        rows.append((run.name, published[0], f"{parameters:,}", published[1], f"{size:,}"))
    header = ("", "trained parameters, published", "edgefl", "bytes of the file, published", "edgefl's")
    return PageTable(PEFT_HEADING, "exact", header, tuple(rows))


PEFT_HEADING = "PEFT: Llama 3.2 3B on MetaMathQA"
ALLOCATED = (
    "MiB after a step", "weights", "gradients", "states", "sum", "allocated, published", "remainder", "scores held",
    "keys and values held", "left",
)  # fmt: skip


def held_per_token() -> tuple[int, int]:
    """Bytes that the output of transformers' own model holds of a token: its scores, and keys and values.

    PEFT's script keeps the output until the next step's takes its name.
    """
    text = load(f"papers/{LLAMA}").model.towers["text"]
    import transformers  # after the scenario, which imports torchvision in its way

    library: Any = transformers
    tokens = 64
    with quiet(), torch.device("meta"), torch.no_grad():
        config = library.AutoConfig.for_model(**text.config, vocab_size=128256, attn_implementation="sdpa")
        model = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        out = model(input_ids=torch.zeros(1, tokens, dtype=torch.int64))
    cache = [tensor for layer in out.past_key_values.layers for tensor in (layer.keys, layer.values)]
    return out.logits.nbytes // tokens, sum(tensor.nbytes for tensor in cache) // tokens


def padded_tokens() -> float:
    """Tokens of a batch of PEFT's runs with padding, as their mean, learnt from the windows of an earlier run.

    Windows with more tokens have more bytes after a step: the slope, over what the library holds of a token, is how
    many tokens there are with padding for one without.
    """
    from scipy.stats import linregress

    tokens = [window.tokens / WINDOW_STEPS for window in PEFT_WINDOWS]
    slope = linregress(tokens, [window.allocated for window in PEFT_WINDOWS]).slope
    return float(slope / sum(held_per_token()) * sum(tokens) / len(tokens))


def _allocation_table(profiles: Profiles) -> PageTable:
    tokens, held = padded_tokens(), held_per_token()
    rows = []
    for run in PEFT_RUNS:
        parts = profiles.after_step(LLAMA, "text", f"adapter={run.adapter}", "model.text.tokens=8")
        cells = [parts[name] for name in ("parameters", "gradients", "optimizer")]
        remainder = run.allocated * 2**20 - sum(cells)
        still = [size * tokens for size in held]
        shown = [mib(value, 1) for value in (*cells, sum(cells))]
        left = (mib(value, 1) for value in (remainder, *still, remainder - sum(still)))
        rows.append((run.name, *shown, CopiedCell(f"{run.allocated:,.1f}"), *left))
    return PageTable(PEFT_HEADING, "allocated", ALLOCATED, tuple(rows))


def _peaks(profiles: Profiles) -> PageTable:
    from scipy.stats import kendalltau

    ours: list[tuple[float, float]] = []
    rows: list[tuple[str, ...]] = []
    for run in PEFT_RUNS:
        adapter = f"adapter={run.adapter}"
        live = profiles.profile_of(LLAMA, adapter).rows[0].live_memory_bytes / 2**20
        reserved = profiles.reserved_bytes(LLAMA, "text", adapter) / 2**20
        ours.append((live, reserved))
        shown = (f"{live:,.0f}", ratio(live, run.reserved), f"{reserved:,.0f}", ratio(reserved, run.reserved))
        rows.append((run.name, CopiedCell(f"{run.reserved:,}"), *shown))
    taus = [kendalltau([run.reserved for run in PEFT_RUNS], values).statistic for values in zip(*ours, strict=True)]
    rows.append(("Kendall's tau of the order", "", f"{taus[0]:.2f}", "", f"{taus[1]:.2f}", ""))
    header = (
        "MiB at the highest moment", "largest reserved, published", "live at 4 x 768 tokens", "live to published",
        "reserved, replayed", "replayed to published",
    )  # fmt: skip
    return PageTable(PEFT_HEADING, "peaks", header, tuple(rows))


# --- the others ------------------------------------------------------------------------------------------------------


def overrides_of_steps() -> dict[str, tuple[str, ...]]:
    """All overrides of the scenario for each row of torchtune's table that is predicted."""
    found, before = {}, tuple[str, ...]()
    for name, step in STEPS.items():
        if not step.lacks:
            found[name] = (*before, *step.overrides) if step.after else step.overrides
            before = found[name]
    return found


def _torchtune(profiles: Profiles) -> PageTable:
    overrides, rows = overrides_of_steps(), list[tuple[str, ...]]()
    before, last = 0.0, 0.0
    for step in TORCHTUNE_STEPS:
        published = CopiedCell(f"{step.peak:.1f}"), CopiedCell(ratio(step.peak, before) if before else "")
        before = step.peak
        if step.name not in overrides:
            rows.append((step.name, *published, STEPS[step.name].lacks, "", ""))
            continue
        peak = profiles.profile_of(LLAMA, *overrides[step.name]).rows[0].live_memory_bytes / 2**30
        rows.append((step.name, *published, f"{peak:.1f}", ratio(peak, last) if last else "", ratio(peak, step.peak)))
        last = peak
    header = (
        "GiB", "published", "to the row before, published", "edgefl", "to the predicted row before",
        "ours to published",
    )  # fmt: skip
    return PageTable("torchtune: Llama 3.2 3B, one option after the other", "torchtune", header, tuple(rows))


def _more(value: float, than: float) -> str:
    return f"{round(value - than, 2) + 0.0:+.2f}"  # no -0.00


def _litgpt(profiles: Profiles) -> PageTable:
    def peak(run: LitgptRun) -> float:
        overrides = (f"training.batch={run.batch}", f"model.text.quantize={run.quantize}")
        return profiles.profile_of(PHI, *overrides).rows[0].live_memory_bytes / 1e9

    def row(name: str, published: float, ours: float, theirs: float | None) -> tuple[str, ...]:
        shown = "" if theirs is None else f"{theirs:.2f}", "" if theirs is None else ratio(theirs, published)
        figures = f"{ours:.2f}", _more(ours, published), ratio(ours, published)
        return (name, CopiedCell(f"{published:.2f}"), *figures, *shown)

    rows, theirs = list[tuple[str, ...]](), dict[int, float]()
    for run in LITGPT_RUNS:
        whole = run.quantize == "null"
        if whole:
            theirs[run.batch] = memory(litgpt(run.batch)).allocated / 1e9
        name = f"{'bfloat16' if whole else run.quantize}, micro-batch {run.batch}"
        rows.append(row(name, run.peak, peak(run), theirs[run.batch] if whole else None))
    one, _, four, _ = LITGPT_RUNS
    slopes = (four.peak - one.peak) / 3, (peak(four) - peak(one)) / 3, (theirs[4] - theirs[1]) / 3
    rows.append(row("a sample more, from 1 to 4", *slopes))
    header = (
        "GB", "published", "edgefl", "difference", "ours to published", "with what litgpt keeps", "that to published",
    )  # fmt: skip
    return PageTable("litgpt: Phi-1.5 with LoRA", "litgpt", header, tuple(rows))


def _nets(profiles: Profiles) -> PageTable:
    rows = []
    for run in NET_RUNS:
        slope = (run.at_128 - run.at_64) / 64
        live, reserved = list[float](), list[float]()
        for batch in (64, 128):
            overrides = (f"model.image.variant={run.variant}", f"training.batch={batch}")
            live.append(profiles.profile_of(NETS, *overrides).rows[0].live_memory_bytes / 2**20)
            reserved.append(profiles.reserved_bytes(NETS, "image", *overrides) / 2**20)
        shown: list[str] = [CopiedCell(f"{slope:.1f}"), CopiedCell(f"{run.fake_tensor:.1f}")]
        for values in (live, reserved):
            shown += [f"{(values[1] - values[0]) / 64:.1f}", ratio((values[1] - values[0]) / 64, slope)]
        rows.append((run.name, *shown, CopiedCell(f"{run.at_128:,}"), f"{reserved[1]:,.0f}"))
    header = (
        "MiB per image", "process, published", "FakeTensor alone, published", "live", "live to published",
        "reserved, replayed", "replayed to published", "MiB at batch 128, published", "reserved, replayed at 128",
    )  # fmt: skip
    return PageTable("Nets of timm on a GPU", "nets", header, tuple(rows))


TEXTS = (
    "data={source: declared, clients: {text: 1}, samples: 512, shapes: {text: {vocabulary: 30522, classes: 2}}, "
    "validation: 64, test: 64}",
    "model={text: {tower: bert, blocks: 24, width: 1024, heads: 16, tokens: 512}}", "training.clip=1.0",
    "training.optimizer=adamw", "training.implementation=for-loop",
)  # fmt: skip
ROBERTA_TEXTS = (
    "data={source: declared, clients: {text: 1}, samples: 640, shapes: {text: {vocabulary: 50265, classes: 2}}, "
    "validation: 64, test: 64}",
    "model={text: {tower: hf, config: {model_type: roberta, hidden_size: 1024, num_hidden_layers: 24, "
    "num_attention_heads: 16, intermediate_size: 4096, max_position_embeddings: 514, type_vocab_size: 1}, tokens: 96}}",
)
OWN_VIT = "model={image: {tower: vit, blocks: 24, width: 1024, heads: 16, patch: 16, drop_path: 0.1}}"
MIXED, CHECKPOINTING = "training.precision=bfloat16", "training.checkpointing=true"
"""bfloat16 takes the bytes of float16."""


def overrides_of_runs() -> dict[str, tuple[str, ...]]:
    """The overrides of the scenario of nets by the name of a ``StepRun``; attention is written out where theirs is."""
    four, ones = "training.batch=4", ("training.batch=1", "training.accumulation=4")
    products = "training.attention=math"
    large, half = "model.image.variant=vit_large_patch16_224", "model.image.dtype=bfloat16"
    mmengine = OWN_VIT, "training.batch=64", "training.optimizer=adamw", products
    overrides: list[tuple[str, ...]] = [
        (*TEXTS, four), (*TEXTS, *ones), (*TEXTS, *ones, CHECKPOINTING), (*TEXTS, four, MIXED),
        (*TEXTS, *ones, CHECKPOINTING, MIXED), (*TEXTS, four, "training.optimizer=adamw-8bit"),
    ]  # fmt: skip
    roberta = *ROBERTA_TEXTS, "training.optimizer=adamw", "training.batch=64"
    lora = "adapter={name: lora, rank: 8, parts: [query, value], also: [head]}"
    overrides = [(*each, products) for each in (*overrides, roberta, (*roberta, lora))]
    overrides += [
        (large, "training.batch=64"), (large, "training.batch=64", MIXED), (large, "training.batch=64", half),
        (large, "training.batch=16", half), (large, four, "training.accumulation=4", half),
        mmengine, (*mmengine, "training.checkpointing=10 blocks"),
    ]  # fmt: skip
    for variant in MESA_NETS.values():
        overrides.append((f"model.image.variant={variant}", "training.batch=128", MIXED, products))
    return dict(zip([run.name for run in STEP_RUNS], overrides, strict=True))


def _steps(profiles: Profiles) -> PageTable:
    """edgefl's own step, and the step with what the source's program keeps besides."""
    rows, overrides, written = [], overrides_of_runs(), source_steps()
    for run in STEP_RUNS:
        kind = "image" if "model.image" in overrides[run.name][0] or OWN_VIT in overrides[run.name] else "text"
        beside = CONTEXT if run.kind == "process" else 0
        if run.kind == "allocated":
            ours = profiles.profile_of(NETS, *overrides[run.name]).rows[0].live_memory_bytes / 2**20
        else:
            ours = profiles.reserved_bytes(NETS, kind, *overrides[run.name]) / 2**20 + beside
        cells: tuple[str, ...] = ("", "")
        if run.name in written:
            taken = memory(written[run.name])
            theirs = (taken.allocated if run.kind == "allocated" else taken.reserved) / 2**20 + beside
            cells = f"{theirs:,.0f}", ratio(theirs, run.mib)
        rows.append((run.name, run.kind, CopiedCell(f"{run.mib:,.0f}"), f"{ours:,.0f}", ratio(ours, run.mib), *cells))
    header = (
        "MiB", "of the", "published", "edgefl", "ours to published", "with what its program keeps", "that to published",
    )  # fmt: skip
    return PageTable("BERT, ViT, DeiT and Swin: steps by program", "steps", header, tuple(rows))


def _phones(profiles: Profiles) -> PageTable:
    def growth_factors(values: tuple[float, ...]) -> tuple[str, ...]:
        return tuple(f"{value / values[0]:.1f}" for value in values[1:])

    def ours(batch: int) -> tuple[float, float]:
        overrides = ("model.image.variant=mobilenetv2_100", f"training.batch={batch}", "executor.device=cpu")
        (row,) = profiles.profile_of(NETS, *overrides).rows
        return row.live_memory_bytes, (row.forward_flops + row.backward_flops) * batch

    predicted = [ours(batch) for batch in PHONE_BATCHES]
    rows: list[tuple[str, ...]] = []
    for run in PHONE_RUNS:
        mine = [growth_factors(tuple(values)) for values in zip(*predicted, strict=True)]
        unknown = [("not predicted: not in timm", "")] * 2
        for name, theirs, own in zip(
            ("memory", "time, ours of FLOPs"), (run.memory, run.milliseconds),
            mine if run.name == "MobileNetV2" else unknown, strict=True,
        ):  # fmt: skip
            rows.append((run.name, name, *map(CopiedCell, growth_factors(theirs)), *own))
    header = ("", "batch 1 is 1", "batch 4, published", "batch 16, published", "batch 4, edgefl", "batch 16, edgefl")
    return PageTable("Phones", "phones", header, tuple(rows), labels=2)
