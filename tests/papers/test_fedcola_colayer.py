"""FedCola's download of one image and one text client a round, for each co-layer option (its Table 3), in MiB."""

from __future__ import annotations

import pytest

from tools.paper_tables.fedcola_colayer import PUBLISHED, download
from tools.paper_tables.profiles import Profiles

BLOCK = 12 * 384**2 + 13 * 384  # weights and biases of qkv, proj, fc1, fc2, and two norms
EMBEDDINGS = (3 * 16 * 16 * 384 + 384) + 384 + 197 * 384 + 30522 * 384 + 40 * 384 + 2 * 384 + 2 * 384
REST = 2 * 2 * 384 + (384 * 100 + 100) + (384 * 4 + 4)  # final norms and heads
PARTNER = {  # of one block: weights and biases of the layers that are sent
    "none": 0,
    "attention": 4 * 384**2 + 4 * 384,
    "mlp": 8 * 384**2 + 5 * 384,
    "blocks": BLOCK,
}


PROFILES = Profiles()


@pytest.mark.slow(smaller="test_fedcolas_download_of_one_image_and_one_text_client")
@pytest.mark.parametrize("option", PUBLISHED)
def test_the_published_download_of_each_option(option: str) -> None:
    name = f"fedcola-colayer-{option}"
    found = PROFILES.profile_of(name)
    assert round(download(PROFILES, name) / 2**20, 2) == PUBLISHED[option]
    assert download(PROFILES, name) == 4 * (EMBEDDINGS + REST + 2 * 12 * (BLOCK + PARTNER[option]))
    both_ways = {t["kind"]: t["traffic_bytes"] for t in found["totals"]}
    # no version is older than the last round under end-to-end: what travels in a round travels in all 30
    for row in found["rows"]:
        assert both_ways[row["kind"]] == 30 * (row["download_bytes"] + row["upload_bytes"])
