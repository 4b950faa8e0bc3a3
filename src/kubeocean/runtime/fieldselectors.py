"""Field selectors: which objects are meant, by a few of their fields.

A selector is a set of terms `field=value` or `field!=value` that must all hold; a field that an
object does not have is empty. In the text form a backslash stands before each comma, equals sign
and backslash of a value. Which fields a kind offers is for the API server to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubeocean.errors import ConfigError

__all__ = ["FieldSelector", "FieldTerm"]

_NAME: Final = re.compile(r"[^,=!\\]+")


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One field that must, or must not, have one value."""

    field: str
    value: str
    equal: bool = True

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.field):
            raise ConfigError("must be a path of a field", field="fieldSelector", value=self.field)

    def matches(self, actual: str) -> bool:
        """Whether a field with this value meets it."""
        return (actual == self.value) is self.equal

    def __str__(self) -> str:
        escaped = re.sub(r"([\\,=])", r"\\\1", self.value)
        return f"{self.field}{'=' if self.equal else '!='}{escaped}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Terms that must all hold, sorted by their text and unique; no terms select everything."""

    terms: tuple[FieldTerm, ...] = ()

    @classmethod
    def of(cls, terms: Iterable[FieldTerm]) -> FieldSelector:
        """All of these."""
        return cls(tuple(sorted(set(terms), key=str)))

    @classmethod
    def parse(cls, text: str) -> FieldSelector:
        """Read `spec.nodeName=a,status.phase!=Failed`; `==` is `=`, and empty terms are skipped."""
        return cls.of(_parse_term(term, text) for term in _TERM.findall(text))

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> FieldSelector:
        """Exactly these values."""
        return cls.of(FieldTerm(field, value) for field, value in fields.items())

    def matches(self, fields: Mapping[str, str] | Callable[[str], str]) -> bool:
        """Whether the object with these fields, or that this function reads, is selected."""
        if isinstance(fields, Mapping):
            return all(term.matches(fields.get(term.field, "")) for term in self.terms)
        return all(term.matches(fields(term.field)) for term in self.terms)

    def __str__(self) -> str:
        return ",".join(str(term) for term in self.terms)


# An escaped comma belongs to its term; a lone backslash at the end is left for _VALUE to refuse.
_TERM: Final = re.compile(r"(?:[^,\\]|\\.?)+", re.DOTALL)
_SPLIT: Final = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
_VALUE: Final = re.compile(r"(?:[^\\,=]|\\[\\,=])*")


def _parse_term(term: str, text: str) -> FieldTerm:
    parts = _SPLIT.fullmatch(term)
    if parts is None:
        raise ConfigError(f"{term!r} has no operator", field="fieldSelector", value=text)
    field, operator, value = parts.groups()
    if not _VALUE.fullmatch(value):
        message = f"each ',', '=' and '\\' in the value of {field!r} needs a '\\' before it"
        raise ConfigError(message, field="fieldSelector", value=text)
    return FieldTerm(field, re.sub(r"\\(.)", r"\1", value), operator != "!=")
