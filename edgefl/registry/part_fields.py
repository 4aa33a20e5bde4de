"""Fields of a scenario, and those of them that name registered parts: what they may hold, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from os.path import abspath, exists, expanduser, isdir, samefile
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.json_schema import JsonSchemaValue

from edgefl import registry
from edgefl.errors import EdgeflError

BESIDE: ContextVar[Path] = ContextVar("beside", default=Path())
"""The folder of the file that is read, where relative paths in it are looked for first."""

PathT = TypeVar("PathT", str, Path)


def path_beside(given: PathT) -> PathT:
    """A path of a scenario: a relative one beside the scenario's file if it is there, else in the working directory.

    Raises ValueError with both places if it is in neither.
    """
    path, folder = Path(expanduser(given)), BESIDE.get()
    if (
        str(given) in ("minilm", "pretrained", "characters")
        or path.is_absolute()
        or folder == Path()
        or not isdir(folder)
    ):
        return given
    if exists(folder / path):
        return given if exists(path) and samefile(path, folder / path) else type(given)(str(folder / path))
    if not exists(path):
        raise ValueError(
            f"{given} is neither beside the file that names it nor in the working directory: "
            f"tried {abspath(folder / path)}, {abspath(path)}"
        )
    return given


FileName = Annotated[str, AfterValidator(path_beside)]
FilePath = Annotated[Path, AfterValidator(path_beside)]


class Fields(BaseModel):
    """Fields that a scenario may give: another one is an error, and none can be set later."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class NamedFields(Fields):
    """Fields of a part that a scenario names: its name, and what a subclass adds."""

    name: str = ""


def parse_options(noun: str, default: str, value: object, shape: str, key: str = "name") -> BaseModel:
    """Options of a part of this noun, from its name or from a mapping that has it under ``key``.

    Without a ``default`` a mapping must name its part.  Raises ValueError, which says what the ``shape`` of a value may
    be, UnknownName, and pydantic's ValidationError for wrong fields.
    """
    if isinstance(value, BaseModel):
        return value
    fields = {key: value} if isinstance(value, str) else value
    if not isinstance(fields, Mapping) or not (default or key in fields):
        raise ValueError(f"{shape}, not {value!r:.60}")
    name = fields.get(key, default)
    options: type[BaseModel] = registry.get(noun, name).Options
    return options.model_validate({**fields, key: name})


def build_part(noun: str, value: object, *arguments: object, key: str = "name") -> Any:
    """The part that a name, a mapping or options choose, made with its own validated options and these arguments.

    Raises as ``parse_options``.
    """
    options = parse_options(noun, "", value, f"a {noun} is a name or a mapping with one", key)
    return registry.get(noun, getattr(options, key))(options, *arguments)


class NamesOf:
    """Annotates a field that holds the name of a part of this noun."""

    def __init__(self, noun: str):
        self.noun = noun

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> JsonSchemaValue:
        return {"type": "string", "enum": registry.names(self.noun)}


class OptionsOf:
    """Annotates a field that holds the fields of a part of this noun, with its name."""

    def __init__(self, noun: str):
        self.noun = noun

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> JsonSchemaValue:
        forms = []
        for name in registry.names(self.noun):
            try:
                form = handler.resolve_ref_schema(
                    handler(registry.get(self.noun, name).Options.__pydantic_core_schema__)
                )
            except EdgeflError:  # the plug-in can't be imported: its name alone
                form = {"type": "object", "properties": {}}
            forms.append({**form, "properties": {**form["properties"], "name": {"const": name}}})
        return {"anyOf": forms}
