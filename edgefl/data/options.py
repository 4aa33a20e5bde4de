"""The options of a scenario's ``data`` section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from edgefl import registry
from edgefl.data.missing import parse_missing
from edgefl.errors import suggestion
from edgefl.modalities import KINDS, MODALITIES, Kind
from edgefl.registry.part_fields import Fields, FileName, FilePath, NamesOf
from edgefl.work.tasks import Like, like

if TYPE_CHECKING:
    from edgefl.work.description import MissingRates

USUAL: dict[Kind, str] = {kind: "retrieve" if kind == "image-text" else "classify" for kind in KINDS}
"""The default task of each kind."""

CHARACTERS = "characters"
"""The vocabulary in which each character is a token."""
PUBLIC, TEST = "public", "test"
"""The keys of ``source`` for public samples and for the server's test; the other keys are kinds."""

Partition = str | dict[str, object]
LARGEST_COUNT = 2**31 - 1
"""Most samples of a client: they are counted in int32."""
LARGEST_SPLIT = 10**9
"""Most groups of a held-out split: a choice, beyond any data set, so that a slip such as 7e90 is refused."""
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]


def _registered_task(name: str) -> str:
    registry.origin("task", name)  # raises UnknownName
    return name


def _ends(value: object) -> object:
    """Parse "50..200" or a pair as ``(fewest, most)``."""
    if isinstance(value, str) and ".." in value:
        fewest, _, most = value.partition("..")
        if not all(end.strip().isdecimal() and len(end.strip()) <= 20 for end in (fewest, most)):
            raise ValueError(f"{value!r} is not a range of samples; write 50..200")
        value = int(fewest), int(most)
    if type(value) is int:
        raise ValueError(f"must be from 1 to {LARGEST_COUNT}, not {value}")
    if not isinstance(value, list | tuple) or len(value) != 2 or any(type(end) is not int for end in value):
        raise ValueError(f"{value!r} is not a range of samples; write 50..200")
    if not 1 <= value[0] <= value[1] <= LARGEST_COUNT:
        raise ValueError(f"{value[0]}..{value[1]} is not a range of samples: 1 <= fewest <= most <= {LARGEST_COUNT}")
    return tuple(value)


_COUNTS = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
ClientCount = Annotated[int, Field(ge=0), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, _COUNTS]})]
CountRange = Annotated[
    tuple[int, int],
    BeforeValidator(_ends),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
]
"""Fewest and most samples of a client."""


class ImageShape(Fields):
    """Pictures of a set that is only declared."""

    channels: int = Field(default=3, ge=1, description="colour channels")
    size: int = Field(default=224, ge=1, description="height and width in pixels")
    classes: int = Field(default=100, ge=2, description="number of classes")


class TextShape(Fields):
    """Texts of a set that is only declared; their length in tokens is the model's."""

    vocabulary: int = Field(default=30522, ge=1, description="number of token ids")
    classes: int = Field(default=4, ge=2, description="number of classes")


class AudioShape(Fields):
    """Spectrograms of a set that is only declared."""

    bins: int = Field(default=128, ge=1, description="frequency bins")
    frames: int = Field(default=1024, ge=1, description="points in time")
    classes: int = Field(default=13, ge=2, description="number of classes")


class MotionShape(Fields):
    """Windows of readings of a set that is only declared."""

    readings: int = Field(default=128, ge=1, description="points in time")
    channels: int = Field(default=9, ge=1, description="values of a reading, one of each axis of each sensor")
    classes: int = Field(default=6, ge=2, description="number of classes")


class DeclaredDataset(Fields):
    """Shapes of a set that is only declared: enough to profile a model at any size, nothing to train on."""

    image: ImageShape = Field(default=ImageShape(), description="shape of the pictures")
    text: TextShape = Field(default=TextShape(), description="shape of the texts")
    audio: AudioShape = Field(default=AudioShape(), description="shape of the spectrograms")
    motion: MotionShape = Field(default=MotionShape(), description="shape of the windows of readings")

    def facts(self, tokens: int) -> dict[str, dict[str, int]]:
        """What models are built by, of each modality, with this length of texts."""
        facts: dict[str, dict[str, int]] = {name: getattr(self, name).model_dump() for name in MODALITIES}
        return facts | {"text": facts["text"] | {"tokens": tokens}}


class DataOptions(Fields):
    """The data set, its partition over clients, and the held-out splits."""

    source: str | dict[str, str | list[str]] = Field(
        default="glyphs",
        description="name of a registered data set; or a mapping with one for each kind of client, one for the public "
        "samples, and one on whose pairs the server tests: {image: cifar100, text: ag-news, image-text: flickr30k, "
        "public: coco-50k, test: coco-50k}; without the last, each kind is tested on its own set; several sets of a "
        "kind, {image: [cifar100, organcmnist]}, have their classes one after the other",
    )
    folders: dict[str, FilePath] = Field(
        default={},
        description="folder of each data set that is read from one: {cifar100: /data/cifar-100-binary}; a relative "
        "path is looked for next to the scenario's file, then in the working directory, as all paths of a scenario "
        "are; a set that isn't named here is looked for in $EDGEFL_DATA/NAME and in data/NAME",
    )
    columns: dict[str, str] = Field(
        default={},
        description="column names of your own table by role (source: table): {image: file, text: caption, "
        "label: class, client: user, split: part}",
    )
    clients: dict[Kind, ClientCount] = Field(
        default={"image": 12, "text": 10, "image-text": 8},
        description="number of clients of each kind; the default of a table with a column client and of sets "
        "by person are all that they name, each of the kind of its samples; of a kind with several sets the number "
        "that hold each of them: {image: {cifar100: 12, organcmnist: 12}}",
    )
    clients_by_set: dict[Kind, dict[str, Annotated[int, Field(ge=1)]]] = Field(
        default={},
        description="number of clients that hold each data set of a kind with several, as written in clients",
    )
    partition: Partition = Field(
        default=dict[str, object](dirichlet=0.5),
        description="how the samples of a kind are spread over its clients: iid, {dirichlet: alpha}, "
        "{dirichlet-equal: alpha}, {quantity: alpha}, {shared: N} (N samples each, which several clients may hold), "
        "groups (all captions of a picture at one client), natural (the clients that the data name, the default of a "
        "table with a column client and of sets by person such as femnist); or a mapping with one of these for each "
        "kind: {image: {dirichlet: 0.5}, "
        "image-text: iid}",
    )
    samples: Count | CountRange | dict[Kind, Count | CountRange] | None = Field(
        default=None,
        description="maximum samples of a client: one number for all kinds, or one for each kind; with "
        "source: declared the exact number, or a range (50..200) from which each client's is drawn",
    )
    validation: float = Field(
        default=0.07,
        ge=0,
        le=LARGEST_SPLIT,
        description="size of the validation split, in groups of samples that belong together (the pictures "
        "of one character, a picture with its captions): a share of all groups if below 1, else their number",
    )
    test: float = Field(
        default=0.08, ge=0, le=LARGEST_SPLIT, description="size of the test split, in the same unit as validation"
    )
    public: Annotated[float, Field(ge=0, le=LARGEST_SPLIT)] | Literal["all"] = Field(
        default=0.0,
        description="size of the public split, which the server and the methods that exchange public "
        "samples use; in the same unit as validation; all: the whole of a set that serves no clients",
    )
    deal_public: bool = Field(
        default=False,
        description="whether clients with pairs get the public ones besides their own, each the same number of "
        "pictures with all their captions, instead of the server and all clients: for methods without public samples",
    )
    pool: bool = Field(
        default=False,
        description="whether samples of published validation and test sets are pooled with the training samples, so "
        "that validation, test and public are held out of all of them",
    )
    draw: dict[Kind | Literal["test"], Count] | None = Field(
        default=None,
        description="number of training samples of a kind before they are dealt to clients, drawn anew for every seed, "
        "and of test samples of each kind, the same for every seed: {image-text: 64000, test: 5000}; where the kind "
        "retrieves, whole pictures with their captions are drawn, and of the last picture only some captions",
    )
    vocabulary: Annotated[int, Field(ge=32, le=1_000_000)] | FileName = Field(
        default=1000,
        description="size of the WordPiece vocabulary that is trained on the training texts; or a ready one: "
        "characters (each one a token, the default of shakespeare), minilm (of the package with its weights), or the "
        "path of a tokenizer.json",
    )
    size: int | None = Field(
        default=None, ge=4, description="height and width of the pictures in pixels; null: the set's own"
    )
    channels: Literal[3] | None = Field(
        default=None,
        description="3 repeats the channel of grey pictures, so that one image tower reads grey and colour sets, or "
        "has weights of a colour model; null: the sets' own",
    )
    tasks: dict[Kind, Annotated[str, AfterValidator(_registered_task), NamesOf("task")]] = Field(
        default={},
        description="task of a kind, if not the default: retrieve for image-text, classify for every other kind; "
        "next-token: predict each token of a text from those before it (text alone, with a causal tower); or another "
        "registered task",
    )
    missing: Any = Field(
        default=None,
        description="missing modalities of clients with two: a share for all (30%), by modality "
        "({image: 30%, text: 10%}), by kind, or exact shares of patterns ({image-text: {patterns: {image-text: "
        "50%, image: 25%, text: 25%}}}); a sample that lacks both is dropped",
    )
    shapes: DeclaredDataset | None = Field(
        default=None, description="shapes of the samples of a declared set (source: declared)"
    )

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, value: Partition) -> Partition:
        if isinstance(value, dict) and not value:
            raise ValueError("an empty partition; write iid, {dirichlet: 0.5} or {quantity: 0.5}")
        if not isinstance(value, dict):
            return value
        if not set(value) & set(KINDS):
            if len(value) != 1:
                raise ValueError(f"expected one partition, found {len(value)}: {', '.join(value)}")
            return value
        for kind, partition in value.items():
            if kind not in KINDS:
                raise ValueError(f"{kind!r} is not a kind of client{suggestion(kind, KINDS)}")
            if not isinstance(partition, str) and not (isinstance(partition, dict) and len(partition) == 1):
                raise ValueError(
                    f"{kind}: {partition!r} is not a partition; write iid, {{dirichlet: 0.5}} or {{quantity: 0.5}}"
                )
        return value

    @field_validator("missing")
    @classmethod
    def _rates(cls, value: Any) -> dict[str, MissingRates] | None:
        return None if value is None else parse_missing(value)

    @model_validator(mode="before")
    @classmethod
    def _count_by_set(cls, given: Any) -> Any:
        """Clients of a kind that are given by data set: their sum, with the numbers in ``clients_by_set``."""
        clients = given.get("clients") if isinstance(given, dict) else None
        if not isinstance(clients, dict):
            return given
        mappings = {kind: counts for kind, counts in clients.items() if isinstance(counts, dict) and counts}
        by_set = {kind: own for kind, own in mappings.items() if all(type(n) is int and n > 0 for n in own.values())}
        sums = {kind: sum(counts.values()) for kind, counts in by_set.items()}
        written = {"clients": clients | sums, "clients_by_set": given.get("clients_by_set", {}) | by_set}
        return given | written if by_set else given

    @field_validator("source")
    @classmethod
    def _sources(cls, value: str | dict[str, str | list[str]]) -> str | dict[str, str | list[str]]:
        allowed = (*KINDS, PUBLIC, TEST)
        if isinstance(value, dict) and (unknown := [name for name in value if name not in allowed]):
            raise ValueError(f"{unknown[0]!r} is not a kind of client; allowed keys of source: {', '.join(allowed)}")
        for key, names in value.items() if isinstance(value, dict) else ():
            if isinstance(names, list) and (key not in KINDS or not 1 < len({*names}) == len(names)):
                allowed_names = "two sets or more, each once" if key in KINDS else "the name of one set"
                raise ValueError(f"{key} has the data sets {', '.join(names)}; write {allowed_names}")
        return value

    @field_validator("tasks")
    @classmethod
    def _possible_tasks(cls, value: dict[Kind, str]) -> dict[Kind, str]:
        for kind, task in value.items():
            if like(task) == "retrieve" and "-" not in kind:
                raise ValueError(f"{kind} clients can't {task}: retrieval needs two modalities")
            if like(task) == "next-token" and kind != "text":
                raise ValueError(f"{kind} clients can't predict the next token: write tasks: {{text: next-token}}")
        return value

    @model_validator(mode="after")
    def _some_clients(self) -> DataOptions:
        if not sum(self.clients.values()):
            raise ValueError("no clients: give at least one kind a number above 0, e.g. {image: 4, text: 4}")
        if self.shapes is not None and self.source != "declared":
            raise ValueError(f"shapes are declared, but the samples come from {self.source!r}: remove one of the two")
        if isinstance(self.source, dict):
            if lacking := [kind for kind, count in self.clients.items() if count and kind not in self.source]:
                raise ValueError(f"source names no data set for {lacking[0]} clients")
            if "declared" in self.sources:
                raise ValueError("declared has shapes for every kind: write source: declared")
        for kind, count in self.clients.items():
            names, counts = self.sets_of(kind, own=True), self.clients_by_set.get(kind, {})
            if count and (len(names) > 1 or counts) and ({*names} != {*counts} or sum(counts.values()) != count):
                each = f"{{{', '.join(f'{name}: {count // len(names)}' for name in names)}}}"
                wanted = f"{{{kind}: {each if len(names) > 1 else count}}}"
                raise ValueError(f"{kind} clients hold samples of {', '.join(names)}: write clients: {wanted}")
        if self.deal_public and (self.dealt_kind is None or not self.public):
            wrong = "set public" if self.dealt_kind else "there are no clients with pairs"
            raise ValueError(f"deal_public deals public pairs to the clients with pairs: {wrong}")
        if self.draw and self.source == "declared":
            raise ValueError("draw: a declared set has as many samples as samples says: leave out draw")
        for name in ("size", "channels"):
            if self.source == "declared" and (value := getattr(self, name)) is not None:
                wanted = f"write shapes: {{image: {{{name}: {value}}}}}"
                raise ValueError(f"{name}: pictures of a declared set have the shape that shapes says: {wanted}")
        if self.source != "declared" and any(isinstance(self._samples(kind), tuple) for kind in KINDS):
            raise ValueError(f"samples: a range needs source: declared; for {self.source!r} give a maximum")
        return self

    @property
    def dealt_kind(self) -> Kind | None:
        """The kind whose clients get the public pairs (``deal_public``), if any does."""
        return next((kind for kind in KINDS if self.deal_public and "-" in kind and self.clients.get(kind)), None)

    def sets_of(self, key: str, *, own: bool = False) -> tuple[str, ...]:
        """The data sets of a kind's clients, of public samples or of the server's test, none if none is named.

        ``own`` leaves out that of the public pairs that they get.
        """
        if isinstance(self.source, str):
            return (self.source,)
        named = self.source.get(key, [])
        dealt = [self.public_source] if key == self.dealt_kind and not own else []
        return tuple(dict.fromkeys([*([named] if isinstance(named, str) else named), *dealt]))

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The data sets that serve the same, by a name for all of them, in order of the kinds that they serve.

        One that only the server tests on is last.
        """
        kinds = [kind for kind in KINDS if self.clients.get(kind)]
        served = [self.sets_of(key) for key in (*kinds, *([] if self.deal_public else [PUBLIC]), TEST)]
        return {" + ".join(names): names for names in served if names}

    @property
    def sources(self) -> tuple[str, ...]:
        """The distinct data sets, in the order of ``parts``."""
        return tuple(dict.fromkeys(name for names in self.parts.values() for name in names))

    @property
    def test_source(self) -> str | None:
        """The data set on whose pairs the server tests, if it is named."""
        return None if isinstance(self.source, str) else (*self.sets_of(TEST), None)[0]

    @property
    def title(self) -> str:
        """The names of the data sets, joined by `` + ``."""
        return " + ".join(self.sources)

    @property
    def public_source(self) -> str:
        """The data set that public samples are held out of: the one named, else that of the pairs."""
        kinds = sorted((kind for kind in KINDS if self.clients.get(kind)), key=lambda kind: "-" not in kind)
        return next(names[0] for key in (PUBLIC, *kinds) if (names := self.sets_of(key, own=True)))

    @property
    def ready_vocabulary(self) -> str | None:
        """The tokenizer that is read from a file; None for one that is made of the training texts."""
        return self.vocabulary if isinstance(self.vocabulary, str) and self.vocabulary != CHARACTERS else None

    def of_source(self, name: str) -> DataOptions:
        """The options of one data set: the clients that hold its samples, and the splits that are held out of it."""
        if isinstance(self.source, str):
            return self
        kinds = {kind: n if name in self.sets_of(kind, own=True) else 0 for kind, n in self.clients.items()}
        has_clients = any(kinds.values())
        changes: dict[str, object] = {
            "source": name,
            "clients": kinds,
            "validation": self.validation if has_clients else 0.0,
            "test": self.test if has_clients or name == self.test_source else 0.0,
            "public": self.public if name == self.public_source else 0.0,
            "folders": {source: path for source, path in self.folders.items() if source == name},
        }
        return self.model_copy(update=changes)

    def missing_of(self, kind: str) -> MissingRates:
        """Missing rates of this kind; empty if all are 0."""
        rates: MissingRates = (self.missing or {}).get(kind, {})
        return rates if any(rates.values()) else {}

    def _samples(self, kind: Kind) -> int | tuple[int, int] | None:
        return self.samples.get(kind) if isinstance(self.samples, dict) else self.samples

    def partition_of(self, kind: Kind) -> tuple[str, Any]:
        """Name and argument of the partition for clients of this kind."""
        partition: Any = self.partition
        if isinstance(partition, dict) and set(partition) & set(KINDS):
            partition = partition.get(kind, "iid")
        if isinstance(partition, str):
            return partition, None
        ((name, argument),) = partition.items()
        return name, argument

    def task_of(self, kind: Kind) -> str:
        """The task of clients of this kind."""
        return self.tasks.get(kind, USUAL[kind])

    def like_of(self, kind: Kind) -> Like:
        """Whose data and models the task of clients of this kind has."""
        return like(self.task_of(kind))

    def samples_of(self, kind: Kind) -> int | None:
        """The maximum samples of one client of this kind; None for no limit."""
        samples = self._samples(kind)
        return samples[1] if isinstance(samples, tuple) else samples

    def sample_range(self, kind: Kind) -> tuple[int, int] | None:
        """Fewest and most samples of a declared client of this kind; None if not set."""
        samples = self._samples(kind)
        return (samples, samples) if isinstance(samples, int) else samples
