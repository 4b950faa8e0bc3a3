"""Reads the files in `install/data`, which are the source of the objects of an installation.

A YAML file has one or more documents, with placeholders for values:

- `${name}` as a whole scalar is replaced by the value `name` of any type. None leaves out the field
  or the list entry that has the placeholder; in a list, a list is replaced by its entries.
- `${name}` within a string or a key is replaced by a string or an integer.
- `${name.attribute}` is an attribute of the value, such as `${domain.manager}`.
- `$${` is written for the characters `${`.

A placeholder without a value, and a value without a placeholder, are errors: both are mistakes in
the file or in its caller. A file is read when its objects are first needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from kubeocean.errors import InvariantError
from kubeocean.runtime.documents import parse_yaml, read_document
from kubeocean.runtime.objects import Json

__all__ = ["fill", "read_object", "read_objects", "read_text", "read_unfilled"]

_DIRECTORY: Final = Path(__file__).parent / "data"
_SEPARATOR: Final = re.compile(r"^---\n", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\$\$\{|\$\{(?P<path>[^{}]*)\}|\$\{")
_ESCAPE: Final = "$${"
_ABSENT: Final = object()


def read_objects(file: str, **values: object) -> list[Json]:
    """Return the documents of a file in `install/data`, with these values for its placeholders.

    :raises InvariantError: a placeholder has no value, or a value has no placeholder.
    """
    return fill(_parsed(file), values, file=file)


def read_object(file: str, **values: object) -> Json:
    """Return the only document of a file in `install/data`, like `read_objects`."""
    (body,) = read_objects(file, **values)
    return body


def read_unfilled(file: str) -> Json:
    """Return the only document of a file in `install/data` with its placeholders, for `fill`."""
    (body,) = _parsed(file)
    return read_document(body, Json)


def read_text(file: str) -> str:
    """Return the content of a file in `install/data`; it has no placeholders."""
    return (_DIRECTORY / file).read_text(encoding="utf-8")


def fill(documents: Iterable[object], values: Mapping[str, object], *, file: str) -> list[Any]:
    """Return copies of parsed documents with values for all placeholders; `file` is for errors.

    :raises InvariantError: a placeholder has no value, or a value has no placeholder.
    """
    filling = _Filling(file, values)
    filled = [filling.whole(each) for each in documents]
    if unused := sorted(set(values) - filling.used):
        raise InvariantError(
            f"{file}: has no placeholder ${{{unused[0]}}}, for which a value was given"
        )
    return filled


@cache
def _parsed(file: str) -> tuple[object, ...]:
    documents = _SEPARATOR.split(read_text(file))
    return tuple(parse_yaml(each.encode(), source=file, unique=True) for each in documents)


class _Filling:
    """The replacement of the placeholders of one file."""

    def __init__(self, file: str, values: Mapping[str, object]) -> None:
        self._file = file
        self._values = values
        self.used: set[str] = set()

    def whole(self, node: object) -> object:
        """Return the node with all placeholders replaced; `_ABSENT` if it is left out."""
        match node:
            case dict():
                fields = ((self._text(str(key)), self.whole(each)) for key, each in node.items())
                return {key: each for key, each in fields if each is not _ABSENT}
            case list():
                return [entry for each in node for entry in self._entries(each)]
            case str():
                placeholder = _PLACEHOLDER.fullmatch(node)
                if placeholder is None or placeholder[0] == _ESCAPE:
                    return self._text(node)
                value = self._value(placeholder)
                return _ABSENT if value is None else self._plain(value, placeholder[0])
        return node

    def _entries(self, node: object) -> list[object]:
        """Return the items that replace an entry of a list."""
        entry = self.whole(node)
        if isinstance(node, str) and isinstance(entry, list):
            return entry
        return [] if entry is _ABSENT else [entry]

    def _text(self, text: str) -> str:
        return _PLACEHOLDER.sub(self._inline, text)

    def _inline(self, placeholder: re.Match[str]) -> str:
        if placeholder[0] == _ESCAPE:
            return "${"
        value = self._value(placeholder)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._error(placeholder[0], f"must be a string or an integer, not {value!r}")
        return str(value)

    def _value(self, placeholder: re.Match[str]) -> object:
        name, *attributes = (placeholder["path"] or "").split(".")
        if name not in self._values:
            raise self._error(placeholder[0], "has no value")
        self.used.add(name)
        value = self._values[name]
        for attribute in attributes:
            if not hasattr(value, attribute):
                raise self._error(placeholder[0], f"has no value: {name} lacks this attribute")
            value = getattr(value, attribute)
        return value

    def _plain(self, value: object, placeholder: str) -> object:
        """Return a copy of a value that consists of the types of YAML documents only."""
        match value:
            case str():
                return str(value)  # of an enumeration, too
            case None | bool() | int() | float():
                return value
            case Mapping():
                return {str(key): self._plain(each, placeholder) for key, each in value.items()}
            case list() | tuple():
                return [self._plain(each, placeholder) for each in value]
        raise self._error(placeholder, f"has a value of type {type(value).__name__}")

    def _error(self, placeholder: str, message: str) -> InvariantError:
        return InvariantError(f"{self._file}: placeholder {placeholder} {message}")
