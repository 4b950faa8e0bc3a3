"""Label selectors: which objects are meant, by their labels.

A selector is a set of requirements that must all hold. It comes from the text that `kubectl -l`
takes, from a LabelSelector document, or from plain labels; `str` gives a text for the API that
selects the same. Requirements have no order and `a=b` is `a in (b)`, so that selectors are equal
when they say the same. What a server would refuse is a `ConfigError`.

The text is read by the documented grammar, which an API server follows but for one stumble: it
refuses an even run of commas before a parenthesis (`a in (x,,)`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import join_path, read_document
from kubeocean.runtime.labels import check_label_key, check_label_value
from kubeocean.runtime.objects import Json
from kubeocean.runtime.requirements import Expression, Operator, Requirement

__all__ = ["EVERYTHING", "NOTHING", "LabelSelector"]

# Gt and Lt exist in texts and for nodes, but not in LabelSelector documents.
_IN_DOCUMENTS: Final = (
    Operator.IN,
    Operator.NOT_IN,
    Operator.EXISTS,
    Operator.DOES_NOT_EXIST,
)


class _Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold, sorted and unique; made by one of the constructors."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def of(cls, requirements: Iterable[Requirement]) -> LabelSelector:
        """All of these."""
        return cls(tuple(sorted(set(requirements))))

    @classmethod
    def parse(cls, text: str, *, field: str = "") -> LabelSelector:
        """Read `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1,j<2`; blank means everything."""
        tokens = _Tokens(text, field)
        if tokens.peek() is None:
            return EVERYTHING
        requirements = [tokens.requirement()]
        while tokens.skip(","):
            requirements.append(tokens.requirement())
        if tokens.peek() is not None:
            raise tokens.unexpected("',' or the end")
        return cls.of(requirements)

    @classmethod
    def from_document(cls, document: Json | None, *, field: str = "") -> LabelSelector:
        """Read a LabelSelector: none selects nothing, an empty one selects everything."""
        if document is None:
            return NOTHING
        content = read_document(document, _Document, field=field)
        at = join_path(field, ".matchExpressions")
        expressions = (
            expression.requirement(_IN_DOCUMENTS, field=f"{at}[{index}]")
            for index, expression in enumerate(content.match_expressions or ())
        )
        wanted = cls.from_labels(content.match_labels or {}, field=join_path(field, ".matchLabels"))
        return cls.of([*wanted.requirements, *expressions])

    @classmethod
    def from_labels(cls, labels: Mapping[str, str], *, field: str = "labels") -> LabelSelector:
        """Exactly these labels, and any others beside them."""
        requirements = []
        for key, value in labels.items():
            check_label_key(key, field=field)
            check_label_value(value, field=f"{field}[{key}]")
            requirements.append(Requirement(key, Operator.IN, (value,)))
        return cls.of(requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING: Final = LabelSelector()

# A contradiction, so that even the text of it selects nothing: the empty text would select all.
NOTHING: Final = LabelSelector(
    (Requirement("nothing", Operator.DOES_NOT_EXIST), Requirement("nothing", Operator.EXISTS))
)

_TOKEN: Final = re.compile(r"==|!=|[=!(),<>]|[^=!(),<> \t\r\n]+")
_SYMBOLS: Final = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">"})
_OPERATORS: Final = {
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
    "=": Operator.IN,
    "==": Operator.IN,
    "!=": Operator.NOT_IN,
    ">": Operator.GT,
    "<": Operator.LT,
}


class _Tokens:
    """A text being read; `in` and `notin` are operators only where an operator must stand."""

    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._rest: list[str] = _TOKEN.findall(text)[::-1]

    def peek(self) -> str | None:
        return self._rest[-1] if self._rest else None

    def skip(self, symbol: str) -> bool:
        """Whether `symbol` came next; if so it is read."""
        if self.peek() != symbol:
            return False
        self._rest.pop()
        return True

    def requirement(self) -> Requirement:
        if self.skip("!"):
            return Requirement.of(self._key(), Operator.DOES_NOT_EXIST, field=self._field)
        key = self._key()
        if self.peek() in (None, ","):
            return Requirement.of(key, Operator.EXISTS, field=self._field)
        symbol = self.peek()
        if symbol not in _OPERATORS:
            raise self.unexpected("an operator")
        self._rest.pop()
        values = self._set() if symbol in ("in", "notin") else [self._value()]
        return Requirement.of(key, _OPERATORS[symbol], values, field=self._field)

    def unexpected(self, wanted: str) -> ConfigError:
        found = "the end" if self.peek() is None else repr(self.peek())
        message = f"a label selector must have {wanted} where {found} is"
        return ConfigError(message, field=self._field, value=self._text)

    def _key(self) -> str:
        key = self._value()
        if not key:
            raise self.unexpected("a label key")
        return key

    def _value(self) -> str:
        """The word that comes next, or none: the empty value is a value."""
        if self.peek() is None or self.peek() in _SYMBOLS:
            return ""
        return self._rest.pop()

    def _set(self) -> list[str]:
        if not self.skip("("):
            raise self.unexpected("'('")
        values = [self._value()]
        while self.skip(","):
            values.append(self._value())
        if not self.skip(")"):
            raise self.unexpected("',' or ')'")
        return values
