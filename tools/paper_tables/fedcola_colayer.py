"""papers/fedcola-colayer.md: FedCola's download of one image and one text client in a round (Tables 3 and 8)."""

from __future__ import annotations

from tools.paper_tables.page_tables import CopiedCell, PageTable, mib
from tools.paper_tables.profiles import Profiles
from tools.paper_tables.published_tables import published

PAPER = published("fedcola")
PUBLISHED = {option: PAPER.fact(f"download-{option}") for option in ("none", "attention", "mlp", "blocks")}
"""MiB for each co-layer option."""
CREAMFL = PAPER.fact("download-creamfl")
"""MiB of CreamFL with 500 public pairs."""
BLOCKS, PAIRS, WIDTH = (int(PAPER.fact(name)) for name in ("layers", "pairs", "width"))
"""Of the page's scenarios: ViT-small has 12 blocks of width 384."""


def download(profiles: Profiles, name: str) -> float:
    """Bytes that one image and one text client download in a round of this scenario."""
    return sum(row.download_bytes for row in profiles.profile_of(name).rows if row.kind in ("image", "text"))


def tables(profiles: Profiles) -> list[PageTable]:
    """The page's table."""
    down = {option: download(profiles, f"fedcola-colayer-{option}") for option in PUBLISHED}
    creamfl = download(profiles, "fedcola-creamfl")
    rows = []
    for option, printed in PUBLISHED.items():
        partners = (down[option] - down["none"]) // 4
        parameters = f"{down['none'] // 4:,}" if option == "none" else f"+ 2 x {BLOCKS} x {partners // (2 * BLOCKS):,}"
        rows.append((option, CopiedCell(printed), mib(down[option], 2), parameters))
    tables_sent = (creamfl - down["none"]) // (4 * PAIRS * WIDTH)
    rows.append((f"CreamFL, {PAIRS} public pairs", CopiedCell(CREAMFL), mib(creamfl, 2),
                 f"+ {tables_sent} x {PAIRS} x {WIDTH}"))  # fmt: skip
    header = ("co-layers", "published, MiB", "edgefl, MiB", "parameters")
    return [PageTable("", "downloads", header, tuple(rows))]
