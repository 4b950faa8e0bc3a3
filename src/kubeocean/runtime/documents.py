"""Documents: untyped content that a user wrote, read into a struct.

What does not fit is a `ConfigError` that names the path within the document and the value there.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from kubeocean.errors import ConfigError

__all__ = ["join_path", "read_document"]

T = TypeVar("T")

_COMPLAINT: Final = re.compile(r"(?P<what>.*) - at (?:`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>[0-9]+)\]")


def read_document(document: object, type_: type[T], *, field: str = "") -> T:
    """Decode `document` as `type_`; `field` is where the document itself was found."""
    try:
        return msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        found = _COMPLAINT.fullmatch(str(error))
        what, path = (found["what"], found["path"]) if found else (str(error), "")
        value = _value_at(document, path)
        raise ConfigError(what, field=join_path(field, path), value=value) from None


def join_path(field: str, path: str) -> str:
    """The path of `path` (`.a[0]`) below `field`, which may be empty."""
    return f"{field}{path}" if field else path.removeprefix(".")


def _value_at(document: Any, path: str) -> object:
    """What stands there; the mapping around it where msgspec does not name the key (`[...]`)."""
    for step in _STEP.finditer(path.partition("[...]")[0]):
        document = document[step["name"] or int(step["index"])]
    return document
