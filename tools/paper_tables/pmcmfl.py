"""docs/evidence/papers/pmcmfl.md: traffic of PmcmFL's prototypes, of what other methods send, and memory."""

from __future__ import annotations

from tools.paper_tables.page_tables import CopiedCell, PageTable, mib
from tools.paper_tables.profiles import Profiles, parts_of_model, payloads
from tools.paper_tables.published_tables import published

TASKS = {310: "310 answers", 3129: "3,129 answers"}
SHARES = {name: f"{published('pmcmfl').fact(f'share-{name.lower()}')} %" for name in ("PmcmFL", "FedHKD")}
"""Published, tables of 3,129 answers as a share of the model."""
BESIDE = {
    "FedPAC": "method={name: fedpac}",
    "FedHKD": "method={name: fedhkd}",
    "PmcmFL": "method=pmcmfl",
    "PmcmFL with FedHKD's terms": "method={name: pmcmfl, distillation: 1}",
}
"""What other methods send beside the same model, by their settings."""
STAGES = 6
"""Our choice: PmcmFL isn't published with a schedule."""
SCHEDULES = ("layerwise", "progressive")


def tables(profiles: Profiles) -> list[PageTable]:
    """The page's five tables."""
    return [_traffic(profiles), baselines(), shares(), _memory(profiles), _stages(profiles)]


def uploaded_bytes(answers: int, name: str) -> dict[str, int]:
    """Bytes that a client of pairs sends up in a round, by payload, under one of BESIDE."""
    return payloads(f"pmcmfl-{answers}", "image-text", 2, BESIDE[name])


def beside(answers: int, name: str) -> int:
    """Bytes beside the model."""
    return sum(size for payload, size in uploaded_bytes(answers, name).items() if payload != "model")


def percent(part: float, whole: float, digits: int) -> str:
    """A share: ``3.152 %``."""
    return f"{100 * part / whole:.{digits}f} %"


def _traffic(profiles: Profiles) -> PageTable:
    columns = []
    models = []
    for answers in TASKS:
        found = profiles.profile_of(f"pmcmfl-{answers}")
        row = next(row for row in found.rows if row.kind == "image-text")
        model, prototypes = (row.download_bytes_by_payload[name] for name in ("model", "prototypes"))
        parts = parts_of_model(f"pmcmfl-{answers}", "image-text", 2)
        rounds = found.round_totals[0]
        moved = rounds.download_bytes + rounds.upload_bytes
        over = sum(t.rounds * (t.download_bytes + t.upload_bytes) for t in found.round_totals)
        models.append(f"{model // 4:,}")
        columns.append(
            (
                *(mib(parts[part], 4) for part in ("embedding", "blocks", "fusion", "head")),
                mib(model, 4),
                mib(prototypes, 4),
                mib(model + prototypes, 4),
                percent(prototypes, model, 3),
                mib(moved, 4),
                mib(over, 2),
            )
        )
    labels = (
        "embedding", "12 layers", "fusion", "head", f"**model** ({' and '.join(models)} parameters)",
        "**three tables of prototypes**", "together", "tables as a share of the model",
        "a round of 5 clients, both ways", "30 rounds",
    )  # fmt: skip
    header = ("one client, one way, MiB", *TASKS.values())
    return PageTable("", "traffic", header, tuple(zip(labels, *columns, strict=True)))


def baselines() -> PageTable:
    """What each method sends beside the model; nothing is predicted."""
    rows = []
    for name in BESIDE:
        cells = []
        for answers in TASKS:
            more = beside(answers, name)
            cells.append(f"{mib(more, 4)} ({percent(more, uploaded_bytes(answers, name)['model'], 3)})")
        rows.append((name, *cells))
    header = ("MiB (share of the model)", *TASKS.values())
    return PageTable("Baselines and matching models", "baselines", header, tuple(rows))


def shares() -> PageTable:
    """What is sent beside the model as a share of either task's model; nothing is predicted."""
    tables_sent = {name: beside(3129, name) for name in SHARES}
    models = {answers: uploaded_bytes(answers, "PmcmFL")["model"] for answers in TASKS}
    rows = [("published", *(CopiedCell(share) for share in SHARES.values()))]
    for task, answers in (("full", 3129), ("small", 310)):
        model = models[answers]
        label = f"the {task} task's model, {mib(model, 4)} MiB"
        rows.append((label, *(percent(size, model, 4) for size in tables_sent.values())))
    header = (
        "tables of 3,129 answers as a share of", *(f"{name}, {mib(size, 4)} MiB" for name, size in tables_sent.items()),
    )  # fmt: skip
    return PageTable("Baselines and matching models", "shares", header, tuple(rows))


def _memory(profiles: Profiles) -> PageTable:
    rows = []
    found = {row.kind: row for row in profiles.profile_of("pmcmfl-310").rows}
    shown = ("parameters", "optimizer", "activations", "temporaries")
    for kind in ("image-text", "image", "text"):
        parts = profiles.live_parts("pmcmfl-310", kind, 1)
        rest = sum(size for part, size in parts.items() if part not in shown)
        rows.append(
            (kind, mib(found[kind].live_memory_bytes, 1), *(mib(parts[part], 1) for part in shown), mib(rest, 1))
        )
    return PageTable("Memory", "memory", ("kind", "peak", *shown, "inputs, gradients, tables"), tuple(rows))


def _stages(profiles: Profiles) -> PageTable:
    rows = []
    for schedule in SCHEDULES:
        override = f"schedule={{name: {schedule}, stages: {STAGES}, rounds: 30}}"
        found = profiles.profile_of("pmcmfl-310", override, kind="image-text").rows
        rows.append((f"{schedule}: peak, MiB", *(mib(row.live_memory_bytes, 1) for row in found)))
        rows.append((f"{schedule}: one way, MiB", *(mib(row.download_bytes, 4) for row in found)))
    header = ("stage", *map(str, range(1, STAGES + 1)))
    return PageTable("Layer-wise and progressive training", "stages", header, tuple(rows))
