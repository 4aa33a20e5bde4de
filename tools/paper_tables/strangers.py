"""Memory of training as others measured it, for papers/estimates.md: facts from the sources that are named.

A source whose repository has no licence is cited, and nothing but the figures is taken from it.
"""

from __future__ import annotations

from typing import NamedTuple


class Citation(NamedTuple):
    """Where figures were read."""

    where: str
    licence: str
    conditions: str


class PeftRun(NamedTuple):
    """A run of PEFT's comparison: what trained, its file, and memory in MiB (``allocated`` is after a step)."""

    name: str
    adapter: str
    parameters: int
    file_bytes: int
    allocated: float
    reserved: float


PEFT = Citation(
    "huggingface/peft, method_comparison/MetaMathQA, results of commit 5d602fd",
    "Apache-2.0",
    "Llama 3.2 3B in bfloat16, adapters in float32, batch 4, at most 768 tokens with dynamic padding, AdamW, torch "
    "2.13, one L40S, 5,000 steps",
)
PEFT_RUNS = (
    PeftRun("full", "none", 3_212_749_824, 6_425_499_648, 24_856.9, 37_068),
    PeftRun(
        "LoRA r 32, q and v", "{name: lora, rank: 32, parts: [q_proj, v_proj], also: []}",
        9_175_040, 36_715_216, 6_603.7, 21_260,
    ),
    PeftRun(
        "LoRA r 10, MLP", "{name: lora, rank: 10, parts: [gate_proj, up_proj, down_proj], also: []}",
        9_461_760, 37_868_984, 6_607.8, 23_554,
    ),
)  # fmt: skip


class Window(NamedTuple):
    """250 steps of a run: tokens of its batches without padding, and bytes allocated after a step as their mean."""

    tokens: int
    allocated: int


PEFT_WINDOWS_SOURCE = Citation(
    "huggingface/peft, method_comparison/MetaMathQA/results/lora--llama-3.2-3B-rank32.json, commit 0a179c1",
    "Apache-2.0",
    "an earlier run of LoRA r 32 (torch 2.7.1): its tokens are the product of its tokens a second and its seconds",
)
PEFT_WINDOWS = (
    Window(211_720, 6_925_580_958), Window(207_995, 6_918_363_699), Window(214_401, 6_929_003_135),
    Window(208_331, 6_919_503_567), Window(208_538, 6_919_763_681), Window(209_331, 6_920_362_314),
    Window(209_355, 6_922_653_980), Window(207_697, 6_919_747_647), Window(214_946, 6_930_711_804),
    Window(205_967, 6_916_224_055), Window(211_881, 6_926_273_599), Window(208_733, 6_921_910_313),
    Window(210_901, 6_923_552_774), Window(209_750, 6_922_457_063), Window(216_703, 6_932_064_410),
    Window(204_373, 6_914_480_900), Window(211_391, 6_925_075_550), Window(207_820, 6_919_328_848),
    Window(209_939, 6_921_498_724), Window(208_282, 6_918_408_684),
)  # fmt: skip
WINDOW_STEPS = 250
"""Steps of a window, after which PEFT's script evaluates (``eval_steps``)."""


class TorchtuneStep(NamedTuple):
    """A row of torchtune's table: what is added to the row before it, and the peak of active memory in GiB."""

    name: str
    peak: float


TORCHTUNE = Citation(
    "pytorch/torchtune, README, Optimization flags",
    "BSD-3-Clause",
    "Llama 3.2 3B in bfloat16, batch 2 of 4,096 tokens, one A100; LoRA and QLoRA (rank 64, all but keys and head) take "
    "AdamW after the backward pass again",
)
TORCHTUNE_STEPS = (
    TorchtuneStep("packed", 60.0),
    TorchtuneStep("compiled", 51.0),
    TorchtuneStep("loss in chunks", 42.9),
    TorchtuneStep("checkpointing", 24.9),
    TorchtuneStep("step in backward", 23.1),
    TorchtuneStep("activations offloaded", 21.8),
    TorchtuneStep("8-bit AdamW", 17.6),
    TorchtuneStep("LoRA", 8.5),
    TorchtuneStep("QLoRA", 4.6),
)


class LitgptRun(NamedTuple):
    """A run of litgpt: its micro-batch, how its frozen weights are held, and the peak in GB (10^9 bytes)."""

    batch: int
    quantize: str
    peak: float


LITGPT = Citation(
    "Lightning-AI/litgpt, tutorials/resource-tables.md",
    "Apache-2.0",
    "phi-1.5 with LoRA of rank 8 on queries and values (1,572,864 parameters), all in bfloat16, longest sample 1,044 "
    "tokens, torch 2.1, bitsandbytes 0.41, one A100",
)
LITGPT_RUNS = (
    LitgptRun(1, "null", 4.82), LitgptRun(2, "null", 6.76), LitgptRun(4, "null", 10.68), LitgptRun(1, "nf4", 3.78),
)  # fmt: skip


class NetRun(NamedTuple):
    """A net of timm: MiB of the process at batch 64 and at 128, and per image what FakeTensor alone says."""

    name: str
    variant: str
    at_64: int
    at_128: int
    fake_tensor: float


NETS = Citation(
    "itu-rad/GPUMemNet, Assets/Related_works/FakeTensor",
    "none: cited",
    "224 x 224; precision and optimizer aren't stated",
)
NET_RUNS = (
    NetRun("ViT-Tiny/16", "vit_tiny_patch16_224", 3_911, 5_959, 29.6),
    NetRun("ViT-B/16", "vit_base_patch16_224", 10_197, 17_601, 115.0),
    NetRun("ResNet-50", "resnet50", 8_465, 15_169, 83.3),
)


class StepRun(NamedTuple):
    """A training step and its memory in MiB, of the ``kind`` "process", "reserved" or "allocated"."""

    name: str
    mib: float
    kind: str


HUGGING_FACE = Citation(
    "Hugging Face, documentation of transformers of 2022, Efficient Training on a Single GPU",
    "Apache-2.0",
    "BERT-large classifies texts of 512 tokens, AdamW, batch 4 or 4 batches of 1; memory of the process by nvidia-smi, "
    "of which 1,343 MiB are there before the model",
)
CONTEXT = 1343
"""MiB of a process before a model, as Hugging Face measured it."""
ROBERTA = Citation(
    "huggingface/peft, issue 675",
    "Apache-2.0",
    "RoBERTa-large, float32, AdamW, 64 texts of 96 tokens: around 17 GB, with LoRA of rank 8 on queries and values 12",
)
RASBT = Citation(
    "rasbt/pytorch-memory-optim, logs.md",
    "none: cited",
    "torchvision's ViT-L/16 of 10 classes, 224 x 224, Adam, torch 2.1.0.dev20230623; largest reserved memory",
)
MMENGINE = Citation(
    "open-mmlab/mmengine, pull request 1319",
    "Apache-2.0",
    "MMPretrain's ViT-L/16, 224 x 224, batch 64 on each of two GPUs, float32, AdamW; largest allocated memory",
)
MESA = Citation(
    "ziplab/Mesa, README",
    "Apache-2.0",
    "224 x 224, batch 128, torch 1.7.1, automatic mixed precision, AdamW; largest allocated memory",
)
STEP_RUNS = (
    StepRun("BERT-large, batch 4", 14_949, "process"),
    StepRun("BERT-large, 4 x 1", 8_681, "process"),
    StepRun("BERT-large, 4 x 1, checkpointing", 6_775, "process"),
    StepRun("BERT-large, batch 4, float16", 13_939, "process"),
    StepRun("BERT-large, 4 x 1, checkpointing, float16", 7_275, "process"),
    StepRun("BERT-large, batch 4, 8-bit AdamW", 13_085, "process"),
    StepRun("RoBERTa-large (peft#675), 64 x 96 tokens", 17 * 1024, "process"),
    StepRun("RoBERTa-large (peft#675), LoRA", 12 * 1024, "process"),
    StepRun("ViT-L/16 (rasbt), batch 64", 26.79e9 / 2**20, "reserved"),
    StepRun("ViT-L/16 (rasbt), batch 64, autocast", 18.21e9 / 2**20, "reserved"),
    StepRun("ViT-L/16 (rasbt), batch 64, bfloat16", 13.82e9 / 2**20, "reserved"),
    StepRun("ViT-L/16 (rasbt), batch 16, bfloat16", 5.69e9 / 2**20, "reserved"),
    StepRun("ViT-L/16 (rasbt), 4 x 4, bfloat16", 3.91e9 / 2**20, "reserved"),
    StepRun("ViT-L/16 (MMPretrain), batch 64", 26_012, "allocated"),
    StepRun("ViT-L/16 (MMPretrain), batch 64, 10 blocks recomputed", 17_842, "allocated"),
    StepRun("DeiT-Ti (Mesa)", 4_171, "allocated"),
    StepRun("DeiT-S (Mesa)", 8_459, "allocated"),
    StepRun("DeiT-B (Mesa)", 17_691, "allocated"),
    StepRun("Swin-Ti (Mesa)", 11_812, "allocated"),
)


class PhoneRun(NamedTuple):
    """A net on a phone at batch 1, 4 and 16: milliseconds of a step, and resident memory in MB."""

    name: str
    milliseconds: tuple[int, int, int]
    memory: tuple[int, int, int]


PHONES = Citation(
    "UbiquitousLearning/Benchmark-On-Device-Training, commit 752659f",
    "none: cited",
    "MNN 1.x on a Snapdragon 855 (Xiaomi MI 9), 224 x 224",
)
PHONE_BATCHES = (1, 4, 16)
"""The batches of the benchmark's table."""
PHONE_RUNS = (
    PhoneRun("MobileNetV2", (403, 1_139, 4_525), (245, 745, 2_764)),
    PhoneRun("SqueezeNet", (150, 608, 2_704), (245, 773, 2_867)),
)
