"""Open a federation: build or read data sets, split them, distribute them to clients, and cache them on disk."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache as once
from functools import partial
from math import prod
from pathlib import Path
from typing import cast

import numpy as np
from tokenizers import Tokenizer

from edgefl import registry, seeds
from edgefl.arrays import AnyArray, Floats, Integers
from edgefl.data.collection import Collection, DataSet, FolderRequest, FolderSet, OnMessage
from edgefl.data.federation import Federation
from edgefl.data.fingerprints import code_of, collection_key, data_fingerprint
from edgefl.data.folders.csv_table import TABLE
from edgefl.data.joining import join, read_collection
from edgefl.data.missing import DROPPED, PAIRS, draw
from edgefl.data.options import PUBLIC, TEST, DataOptions
from edgefl.data.partition import MINIMUM
from edgefl.data.split import (
    SPLITS,
    assign_kinds,
    bits_of,
    first_samples,
    held_by_client,
    hold_out,
    one_per_text,
    order_by_group,
    usable_mask,
)
from edgefl.data.stored_arrays import Built, Meta, StoredEntry, entry
from edgefl.data.stored_set import FederationPart
from edgefl.data.vocabulary import (
    character_tokenizer,
    encode_texts,
    ready_tokenizer,
    tokenizer_file,
    train_wordpiece,
)
from edgefl.errors import DataError
from edgefl.memo import cache_folder, library_version, read_or_compute
from edgefl.modalities import KINDS, MODALITIES, SIGNALS, Kind
from edgefl.registry.answers import describe_answer
from edgefl.work.description import digest
from edgefl.work.tasks import like

COLOURS = 3
"""Channels of a picture in colour."""
WAITS = "another process builds these data: waiting for it"


def open_federation(
    options: DataOptions, *, seed: int, tokens: int, cache: Path | None = None, on_message: OnMessage = lambda _: None
) -> Federation:
    """The data of a federation: a function of (options, seed, tokens) and the installed packages.

    They are built once (with calls of ``on_message``), cached on disk and memory-mapped.  ``tokens`` is the length to
    which texts are padded and cut.  Held-out samples depend on the options alone, so that all seeds share the same
    test names; the seed decides how the other samples are distributed.

    Raises UnknownName for an unknown source or partition, DataError for data that are missing, too few, or too large
    for this machine's memory.
    """
    if tokens < 2:
        raise DataError(f"{tokens} tokens leave no room for a word beside [CLS]: at least 2 are needed")
    for kind in options.clients:
        registry.get("partition", options.partition_of(kind)[0])
    datasets = {name: registry.get("data set", name) for name in options.sources}
    for name, dataset in datasets.items():
        if not isinstance(dataset, DataSet | FolderSet):
            return cast(Federation, dataset(options, tokens=tokens, seed=seed))
        if isinstance(dataset, DataSet) and name in options.folders:
            raise DataError(f"data.folders: {name} comes from an installed package, not from a folder")
    try:
        return _open(datasets, options, seed, tokens, cache or cache_folder(), on_message)
    except MemoryError as error:
        size = f" at a size of {options.size}" if options.size else ""
        raise DataError(
            f"the memory of this machine doesn't suffice to build {', '.join(datasets)}{size} ({error}); "
            "set a smaller data.size, fewer samples, or clients of fewer kinds"
        ) from error


def _open(
    datasets: Mapping[str, DataSet | FolderSet],
    options: DataOptions,
    seed: int,
    tokens: int,
    cache: Path,
    on_message: OnMessage,
) -> Federation:
    collection_keys: dict[str, dict[str, object]] = {}
    collections: dict[str, StoredEntry] = {}
    for name, dataset in datasets.items():
        collection_keys[name], collections[name] = _collection(name, dataset, options, cache, on_message)
    members = {name: {source: collections[source] for source in names} for name, names in options.parts.items()}
    joined = {name: join(each, cache, partial(on_message, WAITS)) for name, each in members.items()}
    part_key = [list(collection_keys.values()), options.model_dump(), seed, tokens, library_version("tokenizers")]
    if options.ready_vocabulary:
        part_key.append(tokenizer_file(options.ready_vocabulary).read_text(encoding="utf-8"))
    used = {options.partition_of(kind)[0] for kind in options.clients}
    if others := sorted(name for name in used if registry.origin("partition", name).package != "edgefl"):
        part_key.append([registry.fingerprint("partition", name) for name in others])
    tokenizer = once(partial(_tokenizer, collections, options, tokens))  # trained only if a part must be built
    parts: dict[str, FederationPart] = {}
    tasks = {kind: options.task_of(kind) for kind in KINDS if options.clients.get(kind)}
    for name, collection in joined.items():
        own_key = [] if len(joined) == 1 else [name]
        deal = partial(_part, collection, members[name], tokenizer, name, options, seed, tokens, on_message)
        dealt = entry(cache, f"federation-{digest([*part_key, *own_key])}", deal, partial(on_message, WAITS))
        parts[name] = FederationPart(collection, dealt, tasks)
    return merge_parts(parts, options)


def _collection(
    name: str, dataset: DataSet | FolderSet, options: DataOptions, cache: Path, on_message: OnMessage
) -> tuple[dict[str, object], StoredEntry]:
    """The cache key of a collection, and its cache entry, built if missing."""
    key, folder = collection_key(name, dataset, options)

    def collect(make: Callable[[], Collection]) -> Built:
        return _collect(name, make, code_of(dataset.build), options.channels == COLOURS, on_message)

    with ExitStack() as stack:

        def build() -> Built:
            if isinstance(dataset, DataSet):
                return collect(lambda: dataset.build(options.size, on_message))
            scratch = stack.enter_context(_scratch(cache))
            wanted = FolderRequest(options.size, folder, on_message, scratch, options.columns)
            return collect(lambda: dataset.build(wanted))

        return key, entry(cache, f"{name}-{digest(key)}", build, partial(on_message, WAITS))


def _in_colour(collection: Collection, name: str, on_message: OnMessage) -> Collection:
    """The collection with three equal channels in each picture, if its pictures are grey."""
    if collection.images is None or collection.images.shape[1] != 1:
        on_message(f"{name} has no grey pictures, so data.channels changes nothing of it")
        return collection
    return replace(collection, images=np.repeat(collection.images, COLOURS, axis=1))


@contextmanager
def _scratch(cache: Path) -> Iterator[Path]:
    """An empty temporary folder: in the cache, or where temporary files are if that can't be written.

    Raises DataError if neither can be written.
    """
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    try:
        inside = cache.is_dir() and os.access(cache, os.W_OK)
        folder = Path(tempfile.mkdtemp(prefix=".edgefl-scratch-", dir=cache if inside else None))
    except OSError as error:
        message = f"neither {cache} nor the folder of temporary files can be written ({error.strerror})"
        raise DataError(message) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def merge_parts(parts: Mapping[str, FederationPart], options: DataOptions) -> Federation:
    """Merge all parts into one federation; clients are numbered kind by kind."""
    kinds = tuple(kind for kind in KINDS if options.clients.get(kind))
    part_of = {kind: part for part in parts.values() for kind in part.kinds}
    client_kind, samples, patterns, dropped = [], [], [], []
    for index, kind in enumerate(kinds):
        part = part_of[kind]
        members = np.flatnonzero(part.clients == part.kinds.index(kind))
        client_kind.append(np.full(len(members), index, np.int64))
        samples.append(np.diff(part.arrays["client_offset"])[members])
        patterns.append(part.client_patterns()[members])
        lacking_both = part.arrays["client_dropped"][members] if part.has_missing else np.zeros(len(members), np.int64)
        dropped.append(lacking_both)
    any_missing = any(part.has_missing for part in parts.values())
    several = len(parts) > 1
    holders = [part for name, part in parts.items() if options.public_source in options.parts[name]]
    public = parts.get(options.public_source, holders[0]) if several and not options.deal_public else None
    server: dict[str, dict[str, int]] = {}
    for part in parts.values():
        for data, sizes in part.server_samples.items():
            if data != PUBLIC or public in (None, part):
                server.setdefault(data, {}).update(sizes)
    tested = parts[options.test_source] if options.test_source else None
    if tested is not None:
        server.setdefault(TEST, {}).update(tested.server_samples[TEST])
        for kind in set(kinds).intersection(tested.server_samples[TEST]):
            if options.like_of(kind) == "classify" and tested.classes != part_of[kind].classes:
                raise DataError(
                    f"data.source.test: {kind} clients classify, but the classes of {options.test_source} aren't those "
                    f"of {part_of[kind].dataset}"
                )
    return Federation(
        title=options.title,
        kinds=kinds,
        client_kind=np.concatenate(client_kind),
        client_samples=np.concatenate(samples),
        class_names=tuple(f"{n}: {c}" if several else c for n, part in parts.items() for c in part.classes),
        facts=_facts(parts),
        server_samples=server,
        tasks={kind: options.task_of(kind) for kind in kinds},
        client_patterns=np.concatenate(patterns) if any_missing else None,
        client_dropped=np.concatenate(dropped) if any_missing else None,
        _parts=tuple(parts.values()),
        _public=public,
        _test=tested,
    )


def _facts(parts: Mapping[str, FederationPart]) -> dict[str, dict[str, int]]:
    """The shapes that models must fit.  Raises DataError if data sets differ in the shape of a modality."""
    facts: dict[str, dict[str, int]] = {}
    first: dict[str, str] = {}
    for name, part in parts.items():
        served = {*part.kinds, *(kind for sizes in part.server_samples.values() for kind in sizes)}
        modalities = {m for kind in served for m in kind.split("-")} or set(part.entry.meta["facts"])
        for modality, shape in part.entry.meta["facts"].items():
            if len(parts) > 1 and modality not in modalities:
                continue
            other = facts.setdefault(modality, dict(shape))
            source = first.setdefault(modality, name)
            for key, value in shape.items():
                if key != "classes" and other[key] != value:
                    remedy = {"size": "; set data.size", "channels": "; set data.channels: 3"}.get(key, "")
                    raise DataError(
                        f"one {modality} tower can't read both: {key} is {other[key]} in {source}, "
                        f"{value} in {name}{remedy}"
                    )
    return facts


def _collect(name: str, make: Callable[[], Collection], code: str, coloured: bool, on_message: OnMessage) -> Built:
    on_message(f"building the data set {name} (once; kept in the cache)")
    with seeds.seeding_globals(seeds.key(0, "data set")):
        collection: object = make()
    if not isinstance(collection, Collection):
        raise DataError(f"{name}: build returned {describe_answer(collection)}, not a Collection")
    if coloured:
        collection = _in_colour(collection, name, on_message)
    arrays: dict[str, AnyArray] = collection.arrays()
    texts = json.dumps({"texts": collection.texts, "masked": collection.masked}, ensure_ascii=False)
    meta: Meta = {"classes": collection.classes, "code": code}
    return Built(arrays, meta, {"texts.json": texts})


def _split(collection: Collection, options: DataOptions) -> tuple[Integers, np.random.Generator]:
    """The split [n] of each sample, and the generator to continue with; both are equal for every seed."""
    fixed = seeds.generator(0, "held-out names")
    sizes = (options.validation, options.test, options.public)
    if options.pool:
        collection = replace(collection, official=None)
    try:
        return hold_out(collection, *sizes, fixed, whole=not any(options.clients.values())), fixed
    except DataError as error:
        raise DataError(f"{options.source}: {error}") from error


def _tokenizer(collections: Mapping[str, StoredEntry], options: DataOptions, tokens: int) -> Tokenizer:
    """The tokenizer of all data sets: loaded, or trained on their training texts."""
    if options.ready_vocabulary:
        return ready_tokenizer(tokenizer_file(options.ready_vocabulary), tokens)
    corpus: set[str] = set()
    for name, stored in collections.items():
        collection, own = read_collection(stored), options.of_source(name)
        if collection.text is not None and (any(own.clients.values()) or name == options.public_source):
            split = _split(collection, own)[0]
            train = np.flatnonzero(np.isin(split, (0, SPLITS.index(PUBLIC)) if options.deal_public else 0))
            corpus |= {
                text
                for index in np.unique(collection.text[train])
                if index >= 0
                for text in (collection.texts[index], collection.masked[index])
            }
    if isinstance(options.vocabulary, str):
        return character_tokenizer(corpus, tokens)
    return train_wordpiece(corpus, options.vocabulary, tokens)


def _part(
    cached: StoredEntry,
    members: Mapping[str, StoredEntry],
    tokenizer_of_all: Callable[[], Tokenizer],
    source: str,
    options: DataOptions,
    seed: int,
    tokens: int,
    on_message: OnMessage,
) -> Built:
    """Build one part: split its data sets, encode their texts, distribute their samples to clients."""
    on_message("holding out samples, training the tokenizer, distributing samples to clients")
    collection = read_collection(cached)
    splits = list[Integers]()
    for name, stored in members.items():
        one, own = read_collection(stored), options.of_source(name)
        if options.pool and one.official is None:
            on_message(f"{name} is published without splits, so data.pool changes nothing of it")
        of_one, fixed = _split(one, own)
        if len(members) > 1 and not any(own.clients.values()):
            of_one = np.where(of_one == 0, -1, of_one)  # only its public samples are dealt
        splits.append(of_one)
    split = np.concatenate(splits)
    dealt = np.flatnonzero((split == SPLITS.index(PUBLIC)) & options.deal_public)
    split[dealt] = SPLITS.index("train")
    train = np.flatnonzero(split == 0)
    arrays: dict[str, AnyArray] = {"split": split.astype(np.int8)}
    files: dict[str, str] = {}
    meta: Meta = {}
    facts: dict[str, dict[str, int]] = {}
    classes = len(collection.classes)
    if collection.images is not None:
        channels, size = collection.images.shape[1:3]
        facts["image"] = {"channels": channels, "size": size, "classes": classes}
        unseen = SPLITS.index(TEST) if source == options.test_source else -1
        samples = train if len(train) else np.flatnonzero((split >= 0) & (split != unseen))  # all may be public
        pictures = samples if collection.image is None else np.unique(collection.image[samples])
        pictures = pictures[pictures >= 0]
        mean, deviation = _moments(collection.images, pictures)
        meta |= {"mean": mean, "deviation": deviation}
    if collection.text is not None:
        tokenizer = tokenizer_of_all()
        files["tokenizer.json"] = tokenizer.to_str(pretty=False)
        arrays["tokens_whole"] = encode_texts(tokenizer, collection.texts, tokens)
        same = collection.masked == collection.texts
        arrays["tokens_masked"] = arrays["tokens_whole"] if same else encode_texts(tokenizer, collection.masked, tokens)
        meta["padding"] = (tokenizer.padding or {}).get("pad_id", 0)
        facts["text"] = {"vocabulary": tokenizer.get_vocab_size(), "tokens": tokens, "classes": classes}
    for signal in SIGNALS:
        if (values := getattr(collection, signal)) is not None:
            sizes = dict(zip(MODALITIES[signal].shape, values.shape[1:], strict=True))
            facts[signal] = {**{name: sizes[name] for name in MODALITIES[signal].of_data}, "classes": classes}
    if collection.audio is not None:
        meta["audio_moments"] = _signal_moments(collection.audio, train)
    if collection.motion is not None:
        each = [_signal_moments(collection.motion, train, channel) for channel in range(collection.motion.shape[2])]
        meta["motion_moments"] = [mean for mean, _ in each], [deviation for _, deviation in each]

    kinds = [kind for kind in KINDS if options.clients.get(kind) and options.sets_of(kind) == tuple(members)]
    server: dict[str, dict[str, int]] = {}
    drawn = options.draw or {}
    for index, data in enumerate(SPLITS):
        if data == "train" or not (split == index).any():
            continue
        server[data] = {}
        # of several data sets each serves its own kinds, but public samples all possible kinds, and a test set pairs
        serves_all = len(options.parts) == 1 or data == PUBLIC
        served = [*kinds, *PAIRS] if data == TEST and source == options.test_source else kinds
        for kind in KINDS if serves_all else (kind for kind in KINDS if kind in served):
            rows: Integers = np.flatnonzero((split == index) & usable_mask(collection, kind, options.task_of(kind)))
            if len(rows):
                # A fixed random order, so that the first few are representative; one picture for each held-out name.
                single = kind == "text" or (kind == "image-text" and data != PUBLIC)
                rows = one_per_text(collection, rows, fixed) if single else fixed.permutation(rows)
                if data == TEST and TEST in drawn and kind in served:
                    what = f"test samples of {kind} clients of {source}"
                    rows = first_samples(collection, rows, drawn[TEST], options.task_of(kind), what)
                if collection.image is not None and "-" in kind:
                    rows = order_by_group(rows, collection.group[rows])  # the first few pairs have whole images
                arrays[f"{data}.{kind}"], server[data][kind] = rows, len(rows)
                if kind in kinds and like(options.task_of(kind)) == "classify" and not np.ptp(collection.label[rows]):
                    only = collection.classes[collection.label[rows[0]]]
                    on_message(f"all {data} samples of {kind} clients are of one class, {only!r}: who guesses it has 1")
    if source == options.test_source and not any(kind in server.get(TEST, {}) for kind in PAIRS):
        pairs = any(collection.modalities.issuperset(kind.split("-")) for kind in PAIRS)
        reason = "holds nothing out for it: set data.test" if pairs else "has no pairs of pictures with texts or sounds"
        raise DataError(f"data.source.test: {source} {reason}")
    if kinds:
        firsts = dict(zip(members, np.cumsum([0, *map(len, splits)]).tolist(), strict=False))
        arrays |= _deal_samples(collection, arrays["split"], dealt, firsts, kinds, source, options, seed, on_message)
    else:
        arrays |= {"client_rows": np.zeros(0, np.int64), "client_offset": np.zeros(1, np.int64)}
    meta["client_kind"] = [index for index, kind in enumerate(kinds) for _ in range(options.clients[kind])]
    meta |= {"kinds": kinds, "facts": facts, "server_samples": server}
    return Built(arrays, meta, files)


def _deal_samples(
    collection: Collection,
    split: Integers,
    public: Integers,
    firsts: Mapping[str, int],
    kinds: Sequence[Kind],
    source: str,
    options: DataOptions,
    seed: int,
    on_message: OnMessage,
) -> dict[str, AnyArray]:
    """The samples of each client, and their missing modalities.

    ``public`` are the positions of public pairs that are dealt, ``firsts`` of each data set's first sample; training
    samples that aren't drawn lose their place in ``split``.
    """
    train = np.setdiff1d(np.flatnonzero(split == 0), public)
    tasks = {kind: options.task_of(kind) for kind in kinds}
    named = [kind for kind in kinds if collection.owner is not None and _is_natural(options, kind)]
    held = {kind: held_by_client(collection, train) for kind in named}
    if collection.owner is not None and not named and source == TABLE.name:
        column = options.columns.get("client", "client")
        on_message(f"the column {column} isn't used, because data.partition deals the rows; natural follows the column")
    clients = {kind: options.clients[kind] for kind in kinds}
    try:
        samples_of = assign_kinds(collection, train, clients, seeds.generator(seed, "samples of kinds"), tasks, held)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    all_kinds = [kind for kind in KINDS if options.clients.get(kind)]
    filled = collection.modality_bits
    lacks = filled.min() < filled.max()
    client_rows: list[Integers] = []
    pattern_codes: list[Integers] = []
    dropped: list[int] = []
    for kind in kinds:
        index = all_kinds.index(kind)
        name, argument = options.partition_of(kind)
        rng = seeds.generator(seed, "partition", index)
        rows = samples_of[kind]
        if kind in (drawn := options.draw or {}):
            rows = seeds.generator(seed, "samples drawn", index).permutation(rows)
            what = f"training samples of {kind} clients of {source}"
            rows = np.sort(first_samples(collection, rows, drawn[kind], tasks[kind], what))
            split[np.setdiff1d(samples_of[kind], rows)] = -1
        partition = registry.get("partition", name)
        partition_reads = getattr(partition, "reads", "label")
        if partition_reads == "owner":
            if collection.owner is None:
                raise DataError(f"{kind} clients of {source}: partition {name}: the data name no clients")
            keys = collection.owner[rows]
        elif partition_reads == "group":
            keys = collection.group[rows]
        else:
            keys = np.where(collection.label[rows] < len(collection.classes), collection.label[rows], -1)
        parts = list[Integers]()
        set_of = np.array([*firsts])[np.searchsorted([*firsts.values()], rows, side="right") - 1]
        counts = options.clients_by_set.get(kind, {source: clients[kind]})
        for one, count in counts.items():
            own = np.flatnonzero(set_of == one) if len(counts) > 1 else np.arange(len(rows))
            try:
                parts += [own[part] for part in partition(keys[own], count, argument, rng)]
            except DataError as error:
                raise DataError(f"{kind} clients of {one}: {error}") from error
        more: list[Integers] = [np.zeros(0, np.int64)] * len(parts)
        if kind == options.dealt_kind:
            pairs = public[usable_mask(collection, kind, tasks[kind])[public]]
            group = collection.group[pairs]
            shuffled = seeds.generator(seed, "public pairs dealt").permutation(np.unique(group))
            more = [pairs[np.isin(group, dealt)] for dealt in np.array_split(shuffled, len(parts))]
        if left := len(rows) - sum(map(len, parts)) if kind in held else 0:
            on_message(f"{kind} clients: {left:,} of {len(rows):,} samples are of clients that don't take part")
        rates, missing_rng = options.missing_of(kind), seeds.generator(seed, "missing", index)
        for part, others in zip(parts, more, strict=True):
            # In random order, so that a cap keeps a random subset.
            kept = np.sort(np.concatenate([rng.permutation(rows[part])[: options.samples_of(kind)], others]))
            code = draw(kind, rates, len(kept), missing_rng) if rates else np.zeros(len(kept), np.int8)
            if lacks and "-" in kind:  # by bits: 1 image, 2 text, 3 both
                code = np.array([DROPPED, 1, 2, 0], np.int8)[np.array([3, 1, 2, 0])[code] & filled[kept]]
            client_rows.append(kept[code != DROPPED])
            pattern_codes.append(code[code != DROPPED])
            dropped.append(int((code == DROPPED).sum()))
    arrays: dict[str, AnyArray] = {"client_rows": np.concatenate(client_rows)}
    arrays["client_offset"] = np.cumsum([0, *map(len, client_rows)])
    if any(options.missing_of(kind) for kind in kinds) or any(codes.any() for codes in pattern_codes):
        arrays |= {"client_pattern": np.concatenate(pattern_codes), "client_dropped": np.array(dropped)}
    return arrays


def _is_natural(options: DataOptions, kind: Kind) -> bool:
    """Whether clients of this kind are those that the data name."""
    return getattr(registry.get("partition", options.partition_of(kind)[0]), "reads", "label") == "owner"


def with_named_clients(options: DataOptions) -> DataOptions:
    """The options with what a set that names its clients has by default, where the scenario sets nothing.

    The partition is ``natural``; then its clients are all with enough training samples, each of the kind of what it
    has.  Raises DataError for data that can't be read, or where no client has enough.
    """
    unset = {"partition", "clients", "vocabulary"} - options.model_fields_set
    known = [name for name in options.sources if name in registry.names("data set")] if unset else []
    sets = {name: each for name in known if isinstance(each := registry.get("data set", name), FolderSet)}
    vocabularies = {each.vocabulary for each in sets.values() if each.vocabulary}
    if len(vocabularies) == 1 and "vocabulary" in unset:
        options = options.model_copy(update={"vocabulary": vocabularies.pop()})
    naming = {name for name, each in sets.items() if each.natural}
    if isinstance(options.source, dict):
        kinds = [kind for kind in KINDS if options.clients.get(kind)]
        by_kind = {k: "natural" if naming.issuperset(options.sets_of(k)) else options.partition for k in kinds}
        return options.model_copy(update={"partition": by_kind} if naming and "partition" in unset else {})
    unset.discard("vocabulary")
    if not naming or not unset or options.partition != "natural" and "partition" not in unset:
        return options
    if options.source != TABLE.name and "clients" not in unset:  # a table may name no clients
        return options.model_copy(update={"partition": "natural"})
    path = cache_folder() / "clients" / f"{digest([data_fingerprint(options), options.model_dump()])}"
    content = read_or_compute(
        path,
        "clients that a table names",
        lambda: json.dumps(_named_clients(sets[options.title], options)).encode(),
        lambda: None,
    )
    found = json.loads(content)
    settled = {"partition": "natural", "clients": found if "clients" in unset else options.clients}
    return options.model_copy(update=settled) if found else options


def _named_clients(dataset: FolderSet, options: DataOptions) -> dict[Kind, int] | None:
    """How many clients of each kind a set names, None if it names none."""
    assert dataset.natural is not None
    folder = collection_key(options.title, dataset, options)[1]
    collection = dataset.natural(FolderRequest(None, folder, lambda _: None, Path(), options.columns))
    if collection.owner is None:
        return None
    train = np.flatnonzero(_split(collection, options)[0] == 0)
    held, found = held_by_client(collection, train), dict[Kind, int]()
    for kind in KINDS:
        fits = usable_mask(collection, kind, options.task_of(kind), held) & (held == bits_of(kind))
        found[kind] = int((np.bincount(collection.owner[train[fits[train]]]) >= MINIMUM).sum())
    if not any(found.values()):
        raise DataError(f"{options.title}: no client that {folder} names has {MINIMUM} training samples or more")
    return {kind: count for kind, count in found.items() if count}


def _moments(images: AnyArray, rows: Integers) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel's bytes over ``rows``, from their histogram."""
    values = np.arange(256)
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(rows), 4096):  # bounds the copy in memory; counts of integers are the same for any size
        chunk = images[rows[start : start + 4096]]
        counts += [np.bincount(chunk[:, channel].ravel(), minlength=256) for channel in range(images.shape[1])]
    mean, deviation = [], []
    for count in counts:
        centre = float((count * values).sum() / count.sum())
        mean.append(centre)
        deviation.append(max(float(np.sqrt((count * (values - centre) ** 2).sum() / count.sum())), 1.0))
    return mean, deviation


def _signal_moments(values: AnyArray, rows: Integers, channel: int | None = None) -> tuple[float, float]:
    """Mean and standard deviation of a signal [n, time, channels] over ``rows``, or of one of its channels."""
    own = slice(None) if channel is None else slice(channel, channel + 1)

    def chunks() -> Iterator[Floats]:
        # made twice, so that one alone is in memory; chunks of another size would change the sums' last bits
        return (values[rows[at : at + 1024]][..., own].astype(np.float64) for at in range(0, len(rows), 1024))

    count = len(rows) * prod(values.shape[1 : 3 if channel is None else 2])
    mean = sum(float(chunk.sum()) for chunk in chunks()) / count
    variance = sum(float(((chunk - mean) ** 2).sum()) for chunk in chunks()) / count
    return mean, max(variance**0.5, 1e-6)
