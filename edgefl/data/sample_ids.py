"""Which samples some weights have seen, written compactly beside them, and how many of those a federation holds.

A sample counts as seen with all of its group (the pictures of one name, a picture with its captions), as splits hold
out whole groups.  In a data set of the same layout (labels, groups and texts) a sample is known by its position,
whatever the size of its pictures; in any other by a digest of its picture, text and signals.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from edgefl.arrays import Booleans, Integers
from edgefl.data.federation import Federation
from edgefl.data.stored_set import FederationPart
from edgefl.errors import DataError
from edgefl.modalities import SIGNALS

_BYTES = 8
"""Bytes of a sample's digest: of a million samples seen and a million others, two are taken for equal with a chance
of 5e-8.  More bytes lengthen the header of each file of weights."""


@dataclass(frozen=True)
class SeenSamples:
    """Samples of a data set: a bit for each of its positions, and a digest of 8 bytes for each sample, in base64.

    ``layout`` is a hash of the labels, groups and texts of all ``total`` samples of the set.
    """

    dataset: str
    layout: str
    total: int
    positions: str
    digests: str

    def seen_mask(self, part: FederationPart, rows: Integers) -> Booleans:
        """Mask [rows] of the samples at these positions of a data set that are among them."""
        if (self.total, self.layout) == (len(part.arrays["label"]), _layout(part)):
            bits = np.frombuffer(base64.b64decode(self.positions), np.uint8)
            return np.unpackbits(bits, count=self.total).astype(bool)[rows]
        seen = np.frombuffer(base64.b64decode(self.digests), np.uint64)
        return np.isin(_digests(part, rows), seen)


def public_samples(federation: Federation, modality: str) -> SeenSamples:
    """The public samples of this modality, with those of their groups."""
    part = federation.public_part(modality)
    group = part.arrays["group"]
    seen = np.isin(group, group[part.arrays[f"public.{modality}"]])
    return SeenSamples(
        part.dataset, _layout(part), len(seen), _text(np.packbits(seen)), _text(_digests(part, np.flatnonzero(seen)))
    )


def encode(seen: Sequence[SeenSamples]) -> str:
    """As JSON, for the header of a safetensors file."""
    return json.dumps([asdict(each) for each in seen])


def decode(text: str) -> tuple[SeenSamples, ...]:
    """What ``encode`` wrote.  Raises ValueError for any other text."""
    try:
        if not isinstance(given := json.loads(text), list):
            raise ValueError("it is no list")
        found = tuple(SeenSamples(**each) for each in given)
        for each in found:
            texts = (each.dataset, each.layout, each.positions, each.digests)
            if type(each.total) is not int or not all(isinstance(text, str) for text in texts):
                raise ValueError("a field has another type")
            bits, digests = (base64.b64decode(text, validate=True) for text in (each.positions, each.digests))
            if len(bits) != -(-each.total // 8) or len(digests) % _BYTES:
                raise ValueError("positions or digests are cut off")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return found


def check_unseen(federation: Federation, seen: Sequence[SeenSamples], where: str) -> None:
    """Raise DataError if clients, validation or test of a federation hold samples that the weights ``where`` have seen.

    Its public samples may be among them.
    """
    found = [
        f"{count} of {total} {whose} in {part.dataset}"
        for part, whose, rows in federation.rows_by_holder()
        if (count := int(np.any([each.seen_mask(part, rows) for each in seen], axis=0).sum())) and (total := len(rows))
    ]
    if found:
        raise DataError(
            f"{where} was trained on samples that this federation holds ({', '.join(found)}): take weights that saw "
            "only its public samples, or hold the same out (data.public, data.validation and data.test as there)"
        )


def _layout(part: FederationPart) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name in ("label", "group", "text"):
        if name in part.arrays:
            hashed.update(f"{name}\0".encode() + np.ascontiguousarray(part.arrays[name], np.int64).tobytes())
    if "text" in part.arrays:
        hashed.update(part.collection.files["texts.json"].tobytes())
    return hashed.hexdigest()


def _digests(part: FederationPart, rows: Integers) -> Integers:
    """A digest [rows] of each sample's picture, text and signals, as 64-bit numbers."""
    arrays = part.arrays
    texts = json.loads(part.collection.text("texts.json"))["texts"] if "text" in arrays else ()
    digests = bytearray()
    for row in rows.tolist():
        hashed = hashlib.blake2b(digest_size=_BYTES)
        if "images" in arrays and (picture := arrays["image"][row] if "image" in arrays else row) >= 0:
            hashed.update(arrays["images"][picture].tobytes())
        if "text" in arrays and arrays["text"][row] >= 0:
            hashed.update(b"\0text" + texts[arrays["text"][row]].encode(errors="surrogatepass"))
        for signal in SIGNALS:
            if signal in arrays:
                hashed.update(f"\0{signal}".encode() + arrays[signal][row].tobytes())
        digests += hashed.digest()
    return np.frombuffer(bytes(digests), np.uint64)


def _text(array: Integers) -> str:
    return base64.b64encode(array.tobytes()).decode()
