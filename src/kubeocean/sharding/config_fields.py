"""Declarative configuration sections: keys of a YAML section as fields of a frozen dataclass.

A setting is a field, declared once with the key that users write, its form and its default:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class State:
        lease_s: float = key("leaseDuration", seconds, "15s")

`read_section` parses a section. A mistake raises a ConfigError that names the key by its whole path
and the value; for an unknown key it names the most similar known one.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from kubeocean.errors import ConfigError
from kubeocean.runtime.flags import duration

__all__ = [
    "Form",
    "at_least",
    "between",
    "boolean",
    "check_known",
    "choice",
    "fraction",
    "key",
    "located",
    "port",
    "positive",
    "read_section",
    "seconds",
    "text",
    "url_path",
    "whole",
]

T = TypeVar("T")
Form: TypeAlias = Callable[[object, str], T]  # arguments: the value as written, the path of the key

_META: Final = "key"
_LAST_PORT: Final = 65_535
_URL_PATH: Final = re.compile(r"[A-Za-z0-9/._~-]+")


class _Section(Protocol):
    """Dataclass whose fields are all configuration keys."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


S = TypeVar("S", bound=_Section)


@dataclass(frozen=True, slots=True)
class _ConfigKey:
    name: str
    form: Form[object]


def key(name: str, form: Form[T], default: object) -> T:
    """Return a field of a section; `default` is written as a user would write the value."""
    return field(default=form(default, name), metadata={_META: _ConfigKey(name, form)})


def read_section(section: type[S], content: object, *, path: str, source: str = "") -> S:
    """Return the section with the parsed `content`; keys that are absent have their defaults.

    :raises ConfigError: a key is unknown, or its value is invalid.
    """
    if content is None:
        return section()
    if not isinstance(content, Mapping):
        raise ConfigError("must be a mapping", field=path, value=content, source=source)
    declared = {each.metadata[_META].name: each for each in dataclasses.fields(section)}
    check_known(content, declared, path=path, source=source)
    try:
        given = {
            each.name: each.metadata[_META].form(content[name], f"{path}.{name}")
            for name, each in declared.items()
            if content.get(name) is not None
        }
    except ConfigError as error:
        raise located(error, source) from None
    return section(**given)


def located(error: ConfigError, source: str) -> ConfigError:
    """Return a configuration error with the name of the file, unless the error has one already."""
    if error.source or not source:
        return error
    placed = ConfigError(str(error), source=source)
    placed.field, placed.value = error.field, error.value
    return placed


def check_known(
    content: Mapping[Any, object], known: Iterable[str], *, path: str, source: str = ""
) -> None:
    """Raise ConfigError if the section `content` has a key that is not in `known`."""
    names = list(known)
    for name in content:
        if name not in names:
            close = get_close_matches(str(name), names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
            at = f"{path}.{name}" if path else str(name)
            raise ConfigError(f"there is no such key; {hint}", field=at, source=source)


# Forms: functions that parse and check the value of one key


def text(written: object, path: str) -> str:
    """Return the value of a configuration key that takes any string."""
    if not isinstance(written, str):
        raise ConfigError("must be a string", field=path, value=written)
    return written


def boolean(written: object, path: str) -> bool:
    """Return the value of a configuration key that is true or false."""
    if not isinstance(written, bool):
        raise ConfigError("must be true or false", field=path, value=written)
    return written


def whole(written: object, path: str) -> int:
    """Return the value of a configuration key that takes a whole number."""
    if isinstance(written, bool) or not isinstance(written, int):
        raise ConfigError("must be a whole number", field=path, value=written)
    return written


def at_least(least: int) -> Form[int]:
    """Return the parser of a configuration key that takes a whole number of at least `least`."""

    def read(written: object, path: str) -> int:
        number = whole(written, path)
        if number < least:
            raise ConfigError(f"must be at least {least}", field=path, value=written)
        return number

    return read


def between(least: int, most: int) -> Form[int]:
    """Return the parser of a configuration key that takes a whole number from `least` to `most`."""

    def read(written: object, path: str) -> int:
        number = at_least(least)(written, path)
        if number > most:
            raise ConfigError(f"must be at most {most}", field=path, value=written)
        return number

    return read


def port(written: object, path: str) -> int:
    """Return the value of a configuration key that takes a TCP port; 0 means any free port."""
    return between(0, _LAST_PORT)(written, path)


def positive(written: object, path: str) -> float:
    """Return the value of a configuration key that takes a number greater than 0."""
    if isinstance(written, bool) or not isinstance(written, int | float):
        raise ConfigError("must be a number", field=path, value=written)
    if not (math.isfinite(written) and written > 0):
        raise ConfigError("must be more than 0", field=path, value=written)
    return float(written)


def fraction(written: object, path: str) -> float:
    """Return the value of a configuration key that takes a number greater than 0 and at most 1."""
    number = positive(written, path)
    if number > 1:
        raise ConfigError("must be at most 1", field=path, value=written)
    return number


def seconds(written: object, path: str) -> float:
    """Return the seconds of a configuration key that takes a duration greater than 0: `15s`,
    `1m30s`, `500ms`."""
    try:
        length = duration(text(written, path), path)
    except ConfigError:
        raise ConfigError(
            "must be a duration such as 15s, 1m30s or 500ms", field=path, value=written
        ) from None
    if length <= 0:
        raise ConfigError("must be more than 0", field=path, value=written)
    return length


def choice(*choices: str) -> Form[str]:
    """Return the parser of a configuration key that takes one of `choices`."""

    def read(written: object, path: str) -> str:
        if written not in choices:
            raise ConfigError(f"must be one of {', '.join(choices)}", field=path, value=written)
        return str(written)

    return read


def url_path(written: object, path: str) -> str:
    """Return the value of a configuration key that takes the path of a URL, which begins with
    `/`."""
    path_text = text(written, path)
    if not path_text.startswith("/"):
        raise ConfigError("must begin with /", field=path, value=written)
    if not _URL_PATH.fullmatch(path_text):
        message = "must consist of letters, digits and the characters / - . _ ~"
        raise ConfigError(message, field=path, value=written)
    return path_text
