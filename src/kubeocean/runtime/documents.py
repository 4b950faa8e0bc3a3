"""Parsing of YAML and JSON documents that users write, with errors that name the path.

`read_document` converts untyped content into a struct; content that does not fit raises a
`ConfigError` that names the path within the document and the value.

`Fields` is one mapping of a YAML document together with its path. Each getter checks the type and
raises a ConfigError that names the file, the context and the field. These errors name types and
paths, never values: any value may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from kubeocean.errors import ConfigError

__all__ = ["Fields", "PlainDumper", "join_path", "parse_yaml", "read_document"]

T = TypeVar("T")

_COMPLAINT: Final = re.compile(r"(?P<what>.*) - at (?:`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>[0-9]+)\]")


def read_document(document: object, type_: type[T], *, field: str = "") -> T:
    """Decode `document` as `type_`; `field` is the path of the document, for errors."""
    try:
        return msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        match = _COMPLAINT.fullmatch(str(error))
        what, path = (match["what"], match["path"]) if match else (str(error), "")
        value = _value_at(document, path)
        raise ConfigError(what, field=join_path(field, path), value=value) from None


def join_path(field: str, path: str) -> str:
    """Join `field`, which may be empty, and `path` (`.a[0]`)."""
    return f"{field}{path}" if field else path.removeprefix(".")


def _value_at(document: Any, path: str) -> object:
    """Return the value at `path`, or the enclosing mapping if msgspec names no key (`[...]`)."""
    for step in _STEP.finditer(path.partition("[...]")[0]):
        document = document[step["name"] or int(step["index"])]
    return document


class PlainDumper(yaml.SafeDumper):
    """YAML dumper that repeats values instead of writing anchors, which are hard to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MAX_DEPTH = 100
_SURROGATE = re.compile("[\ud800-\udfff]")
_T = TypeVar("_T")

_TYPE_NAMES: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "a string",
    bool: "true or false",
}


class _Loader(_Base):  # type: ignore[misc]  # which base there is depends on how PyYAML was built
    """Safe YAML loader in which a date is a string, as in every tool of Kubernetes."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library's own way to configure a loader
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in _Base.yaml_implicit_resolvers.items()
    }


class _UniqueLoader(_Loader):
    """Loader that refuses a mapping in which a key is written twice; YAML would keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[object, object]:
        written: set[str] = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                if name.value in written:
                    raise _Repeated(name.value, name.start_mark.line + 1)
                written.add(name.value)
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


class _Repeated(Exception):
    """Raised when a mapping of a YAML document has one key twice."""


def parse_yaml(content: bytes, *, source: str, unique: bool = False) -> object:
    """Return the document in `content`, None if empty.

    :raises ConfigError: `content` is not exactly one document or, with `unique`, has a key twice.
    """
    try:
        _check_depth(content, source)
        loader = _UniqueLoader if unique else _Loader
        return yaml.load(content, Loader=loader)  # noqa: S506 - subclasses of the safe loader
    except _Repeated as error:
        key, line = error.args
        raise ConfigError(
            f"is written twice, the second time in line {line}", field=key, source=source
        ) from None
    except yaml.MarkedYAMLError as error:
        # Only the place: the library's message quotes the document.
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        # The library's constructors raise any error of their conversions, e.g. for `!!bool x`.
        where = ""
    raise ConfigError(f"is not a YAML document{where}", source=source)


def _check_depth(content: bytes, source: str) -> None:
    """Raise ConfigError if a document is nested too deeply: the C loader recurses without a limit,
    so that some kilobytes of brackets would end the process."""
    depth = 0
    for event in yaml.parse(content, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ConfigError(f"is nested deeper than {_MAX_DEPTH} levels", source=source)


@dataclass(frozen=True, slots=True)
class Fields:
    """Mapping at `path` in the document of `file`."""

    content: Mapping[object, object]
    file: Path
    path: str = ""
    context: str = ""

    @classmethod
    def of(cls, document: object, file: Path) -> Fields:
        """Return the fields of a document of `file`; an empty document has no fields."""
        if document is None:
            return cls({}, file)
        if not isinstance(document, Mapping):
            raise ConfigError(f"must be a mapping, not {_type_name(document)}", source=str(file))
        return cls(document, file)

    def within(self, context: str) -> Fields:
        """Return the same mapping for a named context, which errors will mention."""
        return replace(self, context=context)

    @property
    def source(self) -> str:
        return f"{self.file} (context {_shown(self.context)})" if self.context else str(self.file)

    def error(self, name: str, message: str, *, value: object = None) -> ConfigError:
        """Return an error about one of the fields; pass `value` only if it cannot contain a
        secret."""
        return ConfigError(message, field=self._at(name), value=value, source=self.source)

    def has(self, name: str) -> bool:
        return self.content.get(name) is not None

    def names(self) -> list[str]:
        """Return the names of all fields of the mapping."""
        return [self._typed("(name)", name, str) for name in self.content]

    def text(self, name: str) -> str:
        """Return the string in this field; empty if absent or null."""
        return self._typed(name, self.content.get(name), str)

    def flag(self, name: str) -> bool:
        """Return the boolean in this field; False if absent or null."""
        return self._typed(name, self.content.get(name), bool)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of strings in this field."""
        items = self._typed(name, self.content.get(name), list)
        return tuple(self._typed(f"{name}[{at}]", item, str) for at, item in enumerate(items))

    def section(self, name: str) -> Fields:
        """Return the mapping in this field; empty if absent or null."""
        content = self._typed(name, self.content.get(name), dict)
        return replace(self, content=content, path=self._at(name))

    def sections(self, name: str) -> list[Fields]:
        """Return the list of mappings in this field."""
        items = self._typed(name, self.content.get(name), list)
        at = [f"{name}[{index}]" for index in range(len(items))]
        return [
            replace(self, content=self._typed(where, item, dict), path=self._at(where))
            for where, item in zip(at, items, strict=True)
        ]

    def named(self, name: str, inner: str) -> dict[str, Fields]:
        """Return a list of `{name: …, <inner>: {…}}` by name, as kubeconfig files have them."""
        entries: dict[str, Fields] = {}
        for entry in self.sections(name):
            label = entry.text("name")
            if label in entries:
                raise self.error(name, f"has two entries named {_shown(label)}")
            content = entry.section(inner).content
            entries[label] = replace(entry, content=content, path=f"{name}[{_shown(label)}]")
        return entries

    def file_path(self, name: str) -> Path | None:
        """Return the file that this field names; a relative name starts in the directory of this
        document."""
        value = self.text(name)
        return self.file.absolute().parent / value if value else None

    def _at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path and name else self.path or name

    def _typed(self, name: str, value: object, wanted: type[_T]) -> _T:
        if value is None:
            return wanted()
        if isinstance(value, wanted):
            # Without its C parser PyYAML accepts half of a surrogate pair, which cannot be encoded.
            if isinstance(value, str) and _SURROGATE.search(value):
                message = "has a character that cannot be encoded as UTF-8"
                raise self.error(name, f"{message} (half of a surrogate pair)")
            return value
        hint = " (quote it)" if wanted is str and isinstance(value, int | float) else ""
        raise self.error(name, f"must be {_TYPE_NAMES[wanted]}, not {_type_name(value)}{hint}")


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), f"of type {type(value).__name__}")


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)
