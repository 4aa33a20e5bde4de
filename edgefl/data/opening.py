"""Opening a federation: data sets are built or read once, held out, dealt to clients, and kept on disk."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache as once
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import cast

import numpy as np
from tokenizers import Tokenizer

from edgefl import registry, seeds
from edgefl.data.collection import Collection, DataSet, FolderSet, IntArray, OnMessage, Wanted
from edgefl.data.federation import Federation
from edgefl.data.missing import DROPPED, draw
from edgefl.data.options import KINDS, PUBLIC, DataOptions, Kind
from edgefl.data.part import Part
from edgefl.data.split import SPLITS, by_kind, hold_out, one_per_text, usable
from edgefl.data.store import Array, Entry, entry
from edgefl.data.vocabulary import encoded, ready_tokenizer, tokenizer_file, train_wordpiece
from edgefl.errors import DataError
from edgefl.memo import cache_folder
from edgefl.work.description import digest

REVISION = 3
"""Part of every cache key: raised when the layout, the splits or the draws change."""


def open_federation(
    options: DataOptions, *, seed: int, tokens: int, cache: Path | None = None, on_message: OnMessage = lambda _: None
) -> Federation:
    """The data of a federation: a function of (options, seed, tokens) and the installed packages.

    Built and kept on disk the first time (``on_message`` is called), memory-mapped after.  ``tokens`` is the length to
    which texts are padded and cut.  What is held out depends on the options alone, so that seeds are compared on the
    same test names; the seed decides who holds which of the others.

    Raises UnknownName for an unknown source or partition, DataError for data that are missing or too few.
    """
    if tokens < 2:
        raise DataError(f"{tokens} tokens leave no room for a word beside [CLS]: at least 2 are needed")
    for kind in options.clients:
        registry.get("partition", options.partition_of(kind)[0])
    chosen = {name: registry.get("data set", name) for name in options.sources}
    for name, each in chosen.items():
        if not isinstance(each, DataSet | FolderSet):
            return cast(Federation, each(options, tokens=tokens, seed=seed))
        if isinstance(each, DataSet) and name in options.folders:
            raise DataError(f"data.folders: {name} comes from an installed package, not from a folder")
    return _open(chosen, options, seed, tokens, cache or cache_folder(), on_message)


def _open(
    chosen: Mapping[str, DataSet | FolderSet],
    options: DataOptions,
    seed: int,
    tokens: int,
    cache: Path,
    on_message: OnMessage,
) -> Federation:
    made_of: dict[str, dict[str, object]] = {}
    collections: dict[str, Entry] = {}
    for name, each in chosen.items():
        made_of[name], collections[name] = _collection(name, each, options, cache, on_message)
    parted_of = [list(made_of.values()), options.model_dump(), seed, tokens, version("tokenizers")]
    if isinstance(options.vocabulary, str):
        parted_of.append(tokenizer_file(options.vocabulary).read_text(encoding="utf-8"))
    tokenizer = once(partial(_tokenizer, collections, options, tokens))  # only where a part is to be made
    parts: dict[str, Part] = {}
    tasks = {kind: options.task_of(kind) for kind in KINDS if options.clients.get(kind)}
    for name, collection in collections.items():
        alone = [] if len(collections) == 1 else [name]
        deal = partial(_part, collection, tokenizer, name, options, seed, tokens, on_message)
        dealt = entry(cache, f"federation-{digest([*parted_of, *alone])}", deal)
        parts[name] = Part(collection, dealt, tasks)
    return _merged(parts, options)


def _collection(
    name: str, chosen: DataSet | FolderSet, options: DataOptions, cache: Path, on_message: OnMessage
) -> tuple[dict[str, object], Entry]:
    """What a collection is made of, and the collection, as kept on disk."""
    made_of: dict[str, object] = {"set": name, "size": options.size, "revision": [REVISION, chosen.revision]}
    if isinstance(chosen, DataSet):
        made_of |= {"versions": chosen.versions() | {"numpy": version("numpy")}}
        return made_of, entry(
            cache,
            f"{name}-{digest(made_of)}",
            lambda: _collect(name, lambda: chosen.build(options.size, on_message), on_message),
        )
    given = options.folders.get(name)
    folder = chosen.find(given.expanduser() if given is not None else None)
    made_of |= {"folder": _fingerprint(folder), "columns": options.columns}
    with _scratch(cache) as scratch:
        wanted = Wanted(options.size, folder, on_message, scratch, options.columns)
        kept = entry(
            cache, f"{name}-{digest(made_of)}", lambda: _collect(name, lambda: chosen.build(wanted), on_message)
        )
    return made_of, kept


@contextmanager
def _scratch(cache: Path) -> Iterator[Path]:
    """An empty folder, on the disk where the result goes."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".scratch-", dir=cache))
    except OSError as error:
        raise DataError(f"the data cache {cache} can't be written ({error.strerror})") from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _fingerprint(folder: Path) -> list[object]:
    """What tells a folder from itself after a change: how many files, their bytes together, the newest time."""
    files = [found.stat() for found in folder.rglob("*") if found.is_file()] if folder.is_dir() else [folder.stat()]
    newest = max((each.st_mtime_ns for each in files), default=0)
    return [str(folder.resolve()), len(files), sum(each.st_size for each in files), newest]


def _merged(parts: Mapping[str, Part], options: DataOptions) -> Federation:
    """One federation of all parts: clients are numbered kind by kind."""
    kinds = tuple(kind for kind in KINDS if options.clients.get(kind))
    home = {kind: part for part in parts.values() for kind in part.kinds}
    client_kind, samples, patterns, dropped = [], [], [], []
    for index, kind in enumerate(kinds):
        part = home[kind]
        mine = np.flatnonzero(part.clients == part.kinds.index(kind))
        client_kind.append(np.full(len(mine), index, np.int64))
        samples.append(np.diff(part.arrays["client_offset"])[mine])
        patterns.append(part.client_patterns()[mine])
        lost = part.arrays["client_dropped"][mine] if part.lacking else np.zeros(len(mine), np.int64)
        dropped.append(lost)
    lacking = any(part.lacking for part in parts.values())
    several = len(parts) > 1
    public = parts[options.public_source] if several else None
    server: dict[str, dict[str, int]] = {}
    for part in parts.values():
        for data, sizes in part.server_samples.items():
            if data != PUBLIC or public in (None, part):
                server.setdefault(data, {}).update(sizes)
    return Federation(
        title=options.title,
        kinds=kinds,
        client_kind=np.concatenate(client_kind),
        client_samples=np.concatenate(samples),
        class_names=tuple(f"{n}: {c}" if several else c for n, part in parts.items() for c in part.classes),
        facts=_facts(parts),
        server_samples=server,
        tasks={kind: options.task_of(kind) for kind in kinds},
        client_patterns=np.concatenate(patterns) if lacking else None,
        client_dropped=np.concatenate(dropped) if lacking else None,
        _parts=tuple(parts.values()),
        _public=public,
    )


def _facts(parts: Mapping[str, Part]) -> dict[str, dict[str, int]]:
    """What models must fit.  Raises DataError where data sets differ in the shape of a modality."""
    facts: dict[str, dict[str, int]] = {}
    first: dict[str, str] = {}
    for name, part in parts.items():
        used = {m for kind in part.kinds for m in kind.split("-")} or set(part.entry.meta["facts"])
        for modality, found in part.entry.meta["facts"].items():
            if len(parts) > 1 and modality not in used:
                continue
            other = facts.setdefault(modality, dict(found))
            where = first.setdefault(modality, name)
            for key, value in found.items():
                if key != "classes" and other[key] != value:
                    remedy = "; set data.size" if key == "size" else ""
                    raise DataError(
                        f"one {modality} tower can't read both: {key} is {other[key]} in {where}, "
                        f"{value} in {name}{remedy}"
                    )
    return facts


Built = tuple[dict[str, Array], dict[str, object], dict[str, str]]


def _collect(name: str, make: Callable[[], Collection], on_message: OnMessage) -> Built:
    on_message(f"building the data set {name} (once; kept in the cache)")
    made = make()
    arrays: dict[str, Array] = made.arrays()
    texts = json.dumps({"texts": made.texts, "masked": made.masked}, ensure_ascii=False)
    return arrays, {"classes": made.classes, "arrays": sorted(arrays)}, {"texts.json": texts}


def _reopened(kept: Entry) -> Collection:
    arrays = {name: kept.array(name) for name in kept.meta["arrays"]}
    texts = json.loads((kept.path / "texts.json").read_text(encoding="utf-8"))
    return Collection(
        classes=tuple(kept.meta["classes"]), texts=tuple(texts["texts"]), masked=tuple(texts["masked"]), **arrays
    )


def _split(made: Collection, options: DataOptions) -> tuple[IntArray, np.random.Generator]:
    """What is held out, and the generator that goes on with it: the same for every seed of a scenario."""
    fixed = seeds.generator(0, "held-out names")
    kept = any(options.clients.values())  # a set for public samples alone tests nothing
    sizes = (options.validation, options.test) if kept else (0.0, 0.0)
    return hold_out(made, *sizes, options.public, fixed, whole=not kept), fixed


def _tokenizer(collections: Mapping[str, Entry], options: DataOptions, tokens: int) -> Tokenizer:
    """One for all data sets: given, or trained on their training texts."""
    if isinstance(options.vocabulary, str):
        return ready_tokenizer(tokenizer_file(options.vocabulary), tokens)
    corpus: set[str] = set()
    for name, kept in collections.items():
        made = _reopened(kept)
        if made.text is not None:
            train = np.flatnonzero(_split(made, options.of_source(name))[0] == 0)
            corpus |= {t for place in np.unique(made.text[train]) for t in (made.texts[place], made.masked[place])}
    return train_wordpiece(corpus, options.vocabulary, tokens)


def _part(
    collection: Entry,
    tokenizer_of_all: Callable[[], Tokenizer],
    source: str,
    whole: DataOptions,
    seed: int,
    tokens: int,
    on_message: OnMessage,
) -> Built:
    """Hold out, train the tokenizer, deal to kinds and clients."""
    on_message("holding out names, training the tokenizer, dealing samples to clients")
    made, options = _reopened(collection), whole.of_source(source)
    split, fixed = _split(made, options)
    train = np.flatnonzero(split == 0)
    arrays: dict[str, Array] = {"split": split.astype(np.int8)}
    files: dict[str, str] = {}
    meta: dict[str, object] = {}
    facts: dict[str, dict[str, int]] = {}
    classes = len(made.classes)
    if made.images is not None:
        facts["image"] = {"channels": made.images.shape[1], "size": made.images.shape[2], "classes": classes}
        seen = train if len(train) else np.flatnonzero(split >= 0)  # all of it may be public
        shown = seen if made.image is None else np.unique(made.image[seen])
        mean, deviation = _moments(made.images, shown)
        meta |= {"mean": mean, "deviation": deviation}
    if made.text is not None:
        tokenizer = tokenizer_of_all()
        files["tokenizer.json"] = tokenizer.to_str(pretty=False)
        arrays["tokens_whole"] = encoded(tokenizer, made.texts, tokens)
        same = made.masked == made.texts
        arrays["tokens_masked"] = arrays["tokens_whole"] if same else encoded(tokenizer, made.masked, tokens)
        facts["text"] = {"vocabulary": tokenizer.get_vocab_size(), "tokens": tokens, "classes": classes}
    if made.audio is not None:
        facts["audio"] = {"bins": made.audio.shape[2], "frames": made.audio.shape[1], "classes": classes}
        meta["audio_moments"] = _audio_moments(made.audio, train)

    kinds = [kind for kind in KINDS if options.clients.get(kind)]
    server: dict[str, dict[str, int]] = {}
    for place, data in enumerate(SPLITS):
        if data == "train" or not (split == place).any():
            continue
        server[data] = {}
        # one of several sets has samples for its own kinds, and whatever it can as public ones
        for kind in KINDS if len(whole.sources) == 1 or data == PUBLIC else kinds:
            rows = np.flatnonzero((split == place) & usable(made, kind, options.task_of(kind)))
            if len(rows):
                # A fixed random order, so that the first few are a fair sample; one picture for each held-out name.
                single = kind == "text" or (kind == "image-text" and data != PUBLIC)
                rows = one_per_text(made, rows, fixed) if single else fixed.permutation(rows)
                if made.image is not None and "-" in kind:
                    rows = together(rows, made.group[rows])  # the first few pairs have whole images
                arrays[f"{data}.{kind}"], server[data][kind] = rows, len(rows)
    arrays |= _dealt(made, train, kinds, options, whole, seed)
    meta["client_kind"] = [index for index, kind in enumerate(kinds) for _ in range(options.clients[kind])]
    meta |= {"kinds": kinds, "facts": facts, "server_samples": server, "arrays": sorted(arrays)}
    return arrays, meta, files


def _dealt(
    made: Collection, train: IntArray, kinds: Sequence[Kind], options: DataOptions, whole: DataOptions, seed: int
) -> dict[str, Array]:
    """Whose is which sample, and what it lacks."""
    if not kinds:
        return {"client_rows": np.zeros(0, np.int64), "client_offset": np.zeros(1, np.int64)}
    tasks = {kind: options.task_of(kind) for kind in kinds}
    try:
        dealt = by_kind(made, train, options.clients, seeds.generator(seed, "samples of kinds"), tasks)
    except DataError as error:
        raise DataError(f"{options.source}: {error}") from error
    everyone = [kind for kind in KINDS if whole.clients.get(kind)]
    client_rows: list[IntArray] = []
    codes: list[IntArray] = []
    dropped: list[int] = []
    for kind in kinds:
        index = everyone.index(kind)
        name, argument = options.partition_of(kind)
        rng = seeds.generator(seed, "partition", index)
        rows = dealt[kind]
        partition = registry.get("partition", name)
        partition_reads = getattr(partition, "reads", "label")
        if partition_reads == "owner":
            if made.owner is None:
                raise DataError(f"{kind} clients of {options.source}: partition {name}: the data name no clients")
            by = made.owner[rows]
        elif partition_reads == "group":
            by = made.group[rows]
        else:
            by = np.where(made.label[rows] < len(made.classes), made.label[rows], -1)
        try:
            parts = partition(by, options.clients[kind], argument, rng)
        except DataError as error:
            raise DataError(f"{kind} clients of {options.source}: {error}") from error
        rates, lose = options.missing_of(kind), seeds.generator(seed, "missing", index)
        for part in parts:
            # In random order, so that a cap keeps a fair sample.
            held = np.sort(rng.permutation(rows[part])[: options.samples_of(kind)])
            code = draw(kind, rates, len(held), lose) if rates else np.zeros(len(held), np.int8)
            client_rows.append(held[code != DROPPED])
            codes.append(code[code != DROPPED])
            dropped.append(int((code == DROPPED).sum()))
    arrays: dict[str, Array] = {"client_rows": np.concatenate(client_rows)}
    arrays["client_offset"] = np.cumsum([0, *map(len, client_rows)])
    if any(options.missing_of(kind) for kind in kinds):
        arrays |= {"client_pattern": np.concatenate(codes), "client_dropped": np.array(dropped)}
    return arrays


def together(rows: IntArray, group: IntArray) -> IntArray:
    """``rows`` [n] with each ``group`` [n] in one stretch, where its first member stood."""
    first, place = np.unique(group, return_index=True, return_inverse=True)[1:]
    found: IntArray = rows[np.argsort(first[place.reshape(-1)], kind="stable")]
    return found


def _moments(images: Array, rows: IntArray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel's bytes over ``rows``, from their histogram."""
    values = np.arange(256)
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(rows), 4096):
        some = images[rows[start : start + 4096]]
        counts += [np.bincount(some[:, channel].ravel(), minlength=256) for channel in range(images.shape[1])]
    mean, deviation = [], []
    for count in counts:
        centre = float((count * values).sum() / count.sum())
        mean.append(centre)
        deviation.append(max(float(np.sqrt((count * (values - centre) ** 2).sum() / count.sum())), 1.0))
    return mean, deviation


def _audio_moments(audio: Array, rows: IntArray) -> tuple[float, float]:
    """Mean and standard deviation of the log mel energies over ``rows``."""
    chunks = [audio[rows[start : start + 1024]].astype(np.float64) for start in range(0, len(rows), 1024)]
    count = sum(chunk.size for chunk in chunks)
    mean = sum(float(chunk.sum()) for chunk in chunks) / count
    variance = sum(float(((chunk - mean) ** 2).sum()) for chunk in chunks) / count
    return mean, max(variance**0.5, 1e-6)
