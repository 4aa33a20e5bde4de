"""Classes as sections of a page: the text of each, and a table of its public fields, properties and functions.

All of it is read from the source: texts are docstrings, those under a field included.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgefl.models.model import Model
from tools.pages.markdown import prose, table


@dataclass(frozen=True)
class Member:
    """A public name of a class: what it is called with, its type or what it returns, and its text."""

    name: str
    arguments: str
    type: str
    text: str


def sections(classes: Sequence[type[Any]], linked: Iterable[type[Any]] = ()) -> str:
    """A section for each class, one below the other; their names, and those of ``linked``, lead to sections."""
    known = {each.__name__: each for each in (*classes, *linked)}
    return "\n\n".join(part for each in classes for part in section(each, known))


def section(of: type[Any], known: Mapping[str, type[Any]]) -> Iterator[str]:
    """Heading, text and table of a class.  Raises ValueError for a member without a text."""
    yield f"### {of.__name__}"
    names = known.keys() - {of.__name__}
    yield prose(ast.get_docstring(_definition(of)) or "", names)
    rows = []
    for member in members(of, list(known.values())):
        if not member.text:
            raise ValueError(f"{of.__module__}.{of.__name__}.{member.name} has no text: write one under it")
        words = " ".join(prose(member.text, names).split())
        rows.append((f"`{member.name}{member.arguments}`", _typed(member.type, of, known), words.removesuffix(".")))
    if rows:
        yield table(("Name", "Type", "Meaning"), rows)


def members(of: type[Any], told: Container[type[Any]] = ()) -> list[Member]:
    """The public members of a class and of its bases in edgefl, but for those that are ``told``, a base's first."""
    found: dict[str, Member] = {}
    for base in reversed(of.__mro__):
        ours = base.__module__.startswith("edgefl.") and base is not Model and base not in told
        if ours or base is of:
            for member in _own(base):
                if member.text or member.name not in found:
                    found[member.name] = member
    return list(found.values())


def _own(of: type[Any]) -> Iterator[Member]:
    body = _definition(of).body
    for index, statement in enumerate(body):
        below = body[index + 1] if index + 1 < len(body) else None
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            member = Member(statement.target.id, "", _field_type(statement), str(text))
        elif isinstance(statement, ast.FunctionDef):
            member = _function(statement)
        elif isinstance(statement, ast.ClassDef):
            member = Member(statement.name, "", "model", ast.get_docstring(statement) or "")
        else:
            continue
        if not member.name.startswith("_"):
            yield member


def _function(function: ast.FunctionDef) -> Member:
    decorators = {ast.unparse(each).split(".")[-1] for each in function.decorator_list}
    arguments = list(_arguments(function.args))
    if "staticmethod" not in decorators:
        arguments = arguments[1:]
    returned = ast.unparse(function.returns) if function.returns else ""
    called = "" if decorators & {"property", "cached_property"} else f"({', '.join(arguments)})"
    return Member(function.name, called, returned, ast.get_docstring(function) or "")


def _arguments(of: ast.arguments) -> Iterator[str]:
    """Names with their defaults, as a call of the function takes them; ``*`` stands before those by name alone."""
    needed = len(of.args) - len(of.defaults)
    for arg, default in zip(of.args, [*[None] * needed, *of.defaults], strict=True):
        yield arg.arg if default is None else f"{arg.arg}={ast.unparse(default)}"
    if of.kwonlyargs:
        yield "*"
    for arg, value in zip(of.kwonlyargs, of.kw_defaults, strict=True):
        yield arg.arg if value is None else f"{arg.arg}={ast.unparse(value)}"
    if of.kwarg:
        yield f"**{of.kwarg.arg}"


def _field_type(statement: ast.AnnAssign) -> str:
    annotation = re.sub(r"^ClassVar\[(.*)\]$", r"\1", ast.unparse(statement.annotation))
    value = statement.value
    if value is None:
        return annotation
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {each.arg: ast.unparse(each.value) for each in value.keywords}
        if "default" in given:
            return f"{annotation} = {given['default']}"
        if "default_factory" not in given:
            return annotation
        factory = {"dict": "{}", "list": "[]", "Scalars": "{}"}
        made = given["default_factory"]
        return f"{annotation} = {factory.get(made, f'{made}()')}"
    return f"{annotation} = {ast.unparse(value)}"


def _typed(text: str, of: type[Any], known: Mapping[str, type[Any]]) -> str:
    """A type as code, with a link where it is a class that has a section, or such a class or None."""
    bare = text.removesuffix(" | None")
    if bare in known and vars(sys.modules[of.__module__]).get(bare) is known[bare]:
        return f"[`{bare}`](#{bare.lower()})" + (" or `None`" if bare != text else "")
    return f"`{text}`".replace("'", '"') if text not in ("", "None") else "–"


@cache
def _definition(of: type[Any]) -> ast.ClassDef:
    """The class in its source."""
    for statement in _module(sys.modules[of.__module__].__file__ or "").body:
        if isinstance(statement, ast.ClassDef) and statement.name == of.__name__:
            return statement
    raise ValueError(f"{of.__module__} defines no class {of.__name__}")


@cache
def _module(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))
