"""The ledger: which version of what each client holds, and so what must travel to it.

Where payloads are encoded, a client has the decoded value of whatever was sent to it at that version, however long ago:
decoding gives the same in every round.  Only a frozen part that is still at version 0 is exact, as it was preinstalled.
An active part travels in every round, encoded, at version 0 too.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgefl.schedules import Stage
from edgefl.work import Address, Item, Payload, Work

Versions = Mapping[Address, int]


def always(item: Item, stage: Stage) -> bool:
    """Whether an item travels in every round: what is active, and tables."""
    return item.source.startswith("table/") or stage.active(item.name)


def stale(work: Work, stage: Stage, held: Versions, current: Versions) -> tuple[Address, ...]:
    """Frozen addresses of a work of which the client's copy is older than the server's.

    Version 0 is preinstalled.
    """
    return tuple(
        item.source
        for payload in work.down
        for item in payload.items
        if not always(item, stage) and item.name not in work.keep and held.get(item.source, 0) < current[item.source]
    )


def travelling(work: Work, stage: Stage, old: tuple[Address, ...]) -> tuple[Payload, ...]:
    """The payloads that go down: active parts and tables always, frozen ones only where the copy is ``old``.

    What the client keeps never travels: its first value is preinstalled.
    """
    wanted, kept = set(old), set(work.keep)
    payloads = (
        p.only(lambda item: item.name not in kept and (always(item, stage) or item.source in wanted)) for p in work.down
    )
    return tuple(p for p in payloads if p.items)


def preinstalled(work: Work, down: tuple[Payload, ...], current: Versions) -> frozenset[str]:
    """Names of a work's items that its client has as the server does: at version 0 and not in ``down``, or kept."""
    sent = {item.name for payload in down for item in payload.items}
    first = {i.name for p in work.down for i in p.items if i.name not in sent and not current[i.source]}
    return frozenset(first.union(work.keep))


def final_blocks(work: Work, stage: Stage) -> Payload:
    """A finished stage's own blocks, as LW-FedMML delivers them once to everyone (its Algorithm 1, line 12)."""
    items = (i for p in work.up for i in p.items if ".blocks." in i.name and always(i, stage))
    # they are what goes up, and travel as what goes down does
    return Payload("final", tuple(items), codec=next((p.codec for p in work.down if p.codec), None))


class Ledger:
    """Versions held, by client; a client that never took part holds version 0 of everything."""

    def __init__(self, held: Mapping[int, Versions] | None = None):
        self._held = {client: dict(versions) for client, versions in (held or {}).items()}

    def held(self, client: int) -> Versions:
        """What this client holds."""
        return self._held.get(client, {})

    def sent(self, client: int, payloads: tuple[Payload, ...], current: Versions) -> None:
        """The client now holds these payloads at their current versions."""
        mine = self._held.setdefault(client, {})
        for payload in payloads:
            for item in payload.items:
                mine[item.source] = current[item.source]

    def rows(self) -> dict[str, dict[Address, int]]:
        """As plain data, for a checkpoint; what is at version 0 is left out."""
        return {str(c): {a: v for a, v in held.items() if v} for c, held in sorted(self._held.items())}

    @classmethod
    def from_rows(cls, rows: Mapping[str, Versions]) -> Ledger:
        """The ledger that ``rows`` described."""
        return cls({int(client): held for client, held in rows.items()})
