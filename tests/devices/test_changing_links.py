"""Clients are available where their link has rates: against a look at each tenth of a second."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np

from edgefl.devices import availability_of, library_folder, load_link
from edgefl.devices.availability_options import AvailabilityOptions
from edgefl.devices.changing_links import AvailableOverLinks, ChangingLinks

BEGINS = 3.0


def links_of(folder: Path) -> ChangingLinks:
    """Clients 0, 3, 6, ... have a link that is offline from 4 to 6 s of each 10 s, 1, 4, ... one that ends at 40 s."""
    text = (library_folder() / "networks" / "lte.yaml").read_text()
    for name, rows, period in (("a", "0,1,1\n4,0,1\n6,1,1\n", "period: 10 s"), ("b", "0,1,1\n40,0,0\n", "")):
        (folder / f"{name}.csv").write_text("start,download,upload\n" + rows)
        (folder / f"{name}.yaml").write_text(f"{text}trace: {{file: {name}.csv, {period}}}\n")
    names = [str(folder / "a.yaml"), str(folder / "b.yaml"), "wifi-5"]
    return ChangingLinks([load_link(name) for name in names], np.arange(9) % 3, BEGINS)


def test_both_the_client_and_its_link_must_be_there(tmp_path: Path) -> None:
    own = availability_of(AvailabilityOptions.model_validate({"markov": {"on": 7, "off": 3}}), 9, seed=5)
    both, clients = AvailableOverLinks(own, links_of(tmp_path)), np.arange(9)
    # a tenth of a second apart, and never where a rate changes
    times = np.arange(0.05, 60, 0.1)
    clock = times + BEGINS
    linked = np.stack([(clock % 10 < 4) | (clock % 10 >= 6), clock < 40, np.ones(len(times), bool)] * 3)
    there = np.stack([own.available(clients, at) for at in times], axis=1) & linked
    for place in range(0, len(times), 7):
        at = times[place]
        assert both.available(clients, at).tolist() == there[:, place].tolist()
        leaves, returns = both.leaves(clients, at), both.returns(clients, at)
        for client in clients.tolist():
            later = np.flatnonzero(there[client, place:] != there[client, place])
            changes = times[place + later[0]] if len(later) else inf
            found, other = (leaves, returns) if there[client, place] else (returns, leaves)
            assert other[client] == at
            if changes < inf:  # it may come and go within a tenth of a second
                assert at < found[client] <= changes
            elif client % 3 == 1 and not there[client, place] and at > 40 - BEGINS:
                assert found[client] == inf
