"""Label selectors and field selectors, with the validation of label keys and values.

A label key is a name of at most 63 characters, optionally after a DNS subdomain and a slash; a
label value is such a name or empty. A check returns None or raises a `ConfigError` with field and
value.

A requirement is one condition on one label. Operators have their meaning in an API server: `NotIn`
holds for an object without the label, `Gt` and `Lt` for labels that are integers. A label selector
is a set of requirements that must all hold, parsed from the text that `kubectl -l` accepts, from a
LabelSelector document, or from plain labels; `str` returns an equivalent text for the API.
Requirements are unordered and `a=b` equals `a in (b)`, so equivalent selectors are equal. An API
server follows the documented grammar except that servers refuse an even run of commas before a
parenthesis (`a in (x,,)`).

A field selector is a set of terms `field=value` or `field!=value` that must all hold; a missing
field is empty. In text, a backslash escapes commas, equals signs and backslashes of a value. The
API server decides which fields a kind offers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import join_path, read_document
from kubeocean.runtime.objects import Json

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "Expression",
    "FieldSelector",
    "FieldTerm",
    "LabelSelector",
    "Operator",
    "Requirement",
    "check_label_key",
    "check_label_value",
    "check_subdomain",
]

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME_RULE: Final = (
    "must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit"
)
_NAME_LONGEST: Final = 63
_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)
_SUBDOMAIN_LONGEST: Final = 253


def check_label_key(key: str, *, field: str = "") -> None:
    """Check a label key: `name` or `prefix/name`.

    :raises ConfigError: the key is invalid.
    """
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _SUBDOMAIN_LONGEST or not _SUBDOMAIN.fullmatch(prefix)):
        raise ConfigError(
            "the prefix of a label key must be a DNS subdomain", field=field, value=key
        )
    if len(name) > _NAME_LONGEST:
        message = f"the name of a label key must be at most {_NAME_LONGEST} characters"
        raise ConfigError(message, field=field, value=key)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a label key {_NAME_RULE}", field=field, value=key)


def check_label_value(value: str, *, field: str = "") -> None:
    """Check a label value: empty, or a name of at most 63 characters.

    :raises ConfigError: the value is invalid.
    """
    if len(value) > _NAME_LONGEST:
        message = f"a label value must be at most {_NAME_LONGEST} characters"
        raise ConfigError(message, field=field, value=value)
    if value and not _NAME.fullmatch(value):
        raise ConfigError(f"a label value {_NAME_RULE}", field=field, value=value)


def check_subdomain(name: str, *, field: str = "") -> None:
    """Check a DNS subdomain, the form of most object names."""
    if len(name) > _SUBDOMAIN_LONGEST or not _SUBDOMAIN.fullmatch(name):
        raise ConfigError("must be a lowercase DNS subdomain", field=field, value=name)


class Operator(StrEnum):
    """Operator of a label requirement, spelled as in documents."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


_WITHOUT_VALUES: Final = (Operator.EXISTS, Operator.DOES_NOT_EXIST)
_WITH_INTEGER: Final = (Operator.GT, Operator.LT)


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """Condition on one label, validated by `of`. Values are sorted and unique."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, key: str, operator: Operator, values: Iterable[str] = (), *, field: str = ""
    ) -> Requirement:
        """Return a valid requirement on a label; errors name `field`."""
        given = list(values)
        at = join_path(field, ".values")
        check_label_key(key, field=join_path(field, ".key"))
        for index, value in enumerate(given):
            check_label_value(value, field=f"{at}[{index}]")
        if operator in _WITHOUT_VALUES:
            if given:
                raise ConfigError(f"{operator} takes no values", field=at, value=given)
        elif not given:
            raise ConfigError(f"{operator} needs a value", field=at, value=given)
        if operator in _WITH_INTEGER and (len(given) != 1 or _integer(given[0]) is None):
            raise ConfigError(f"{operator} takes one integer", field=at, value=given)
        return cls(key, operator, tuple(sorted(set(given))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels meets the requirement."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels
            case _:
                return self._compares(_integer(labels.get(self.key, "")))

    def _compares(self, actual: int | None) -> bool:
        if actual is None:
            return False
        bound = int(self.values[0])
        return actual > bound if self.operator is Operator.GT else actual < bound

    def __str__(self) -> str:
        match self.operator:
            case Operator.IN if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case Operator.NOT_IN if len(self.values) == 1:
                return f"{self.key}!={self.values[0]}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case _:
                return f"{self.key}{'>' if self.operator is Operator.GT else '<'}{self.values[0]}"


class Expression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requirement of a LabelSelector document.

    An unknown field is an error: without that field more objects might be selected than intended.
    """

    key: str
    operator: str
    values: list[str] | None = None

    def requirement(self, operators: Iterable[Operator], *, field: str = "") -> Requirement:
        """Return the requirement of a document's expression; operators other than these, and
        invalid values, are errors."""
        known = {str(operator): operator for operator in operators}
        if self.operator not in known:
            message = f"must be one of {', '.join(known)}"
            raise ConfigError(message, field=join_path(field, ".operator"), value=self.operator)
        return Requirement.of(self.key, known[self.operator], self.values or (), field=field)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}")


def _integer(text: str) -> int | None:
    """Return the text as a number of 64 bits, else None; API servers compare no other numbers."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


# Gt and Lt exist in texts and for nodes, but not in LabelSelector documents.
_IN_DOCUMENTS: Final = (
    Operator.IN,
    Operator.NOT_IN,
    Operator.EXISTS,
    Operator.DOES_NOT_EXIST,
)


class _LabelSelectorDocument(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True
):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Label selector: requirements that must all hold, sorted and unique; made by one of the
    constructors."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def of(cls, requirements: Iterable[Requirement]) -> LabelSelector:
        """Return the label selector of these requirements."""
        return cls(tuple(sorted(set(requirements))))

    @classmethod
    def parse(cls, text: str, *, field: str = "") -> LabelSelector:
        """Parse the text of a label selector: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1,j<2`; blank
        selects everything."""
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
        """Parse a LabelSelector document: None selects nothing, an empty document selects
        everything."""
        if document is None:
            return NOTHING
        content = read_document(document, _LabelSelectorDocument, field=field)
        at = join_path(field, ".matchExpressions")
        expressions = (
            expression.requirement(_IN_DOCUMENTS, field=f"{at}[{index}]")
            for index, expression in enumerate(content.match_expressions or ())
        )
        selector = cls.from_labels(
            content.match_labels or {}, field=join_path(field, ".matchLabels")
        )
        return cls.of([*selector.requirements, *expressions])

    @classmethod
    def from_labels(cls, labels: Mapping[str, str], *, field: str = "labels") -> LabelSelector:
        """Return a selector of objects that have all these labels, with any other labels."""
        requirements = []
        for key, value in labels.items():
            check_label_key(key, field=field)
            check_label_value(value, field=f"{field}[{key}]")
            requirements.append(Requirement(key, Operator.IN, (value,)))
        return cls.of(requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING: Final = LabelSelector()

# A contradiction, so that its text selects nothing, too: the empty text would select all.
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
    """Tokens of a label selector's text; `in` and `notin` are operators only where an operator must
    stand."""

    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._rest: list[str] = _TOKEN.findall(text)[::-1]

    def peek(self) -> str | None:
        return self._rest[-1] if self._rest else None

    def skip(self, symbol: str) -> bool:
        """Consume `symbol` if it is the next token; return whether it was."""
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
        token = "the end" if self.peek() is None else repr(self.peek())
        message = f"a label selector must have {wanted} where {token} is"
        return ConfigError(message, field=self._field, value=self._text)

    def _key(self) -> str:
        key = self._value()
        if not key:
            raise self.unexpected("a label key")
        return key

    def _value(self) -> str:
        """Return the next word as a label value; an empty text, which is a valid value, if there is
        none.
        """
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


_FIELDSELECTORS_NAME: Final = re.compile(r"[^,=!\\]+")


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """Term of a field selector: a field must, or must not, have one value."""

    field: str
    value: str
    equal: bool = True

    def __post_init__(self) -> None:
        if not _FIELDSELECTORS_NAME.fullmatch(self.field):
            raise ConfigError("must be a path of a field", field="fieldSelector", value=self.field)

    def matches(self, actual: str) -> bool:
        """Return whether a field with the value `actual` meets the term."""
        return (actual == self.value) is self.equal

    def __str__(self) -> str:
        escaped = re.sub(r"([\\,=])", r"\\\1", self.value)
        return f"{self.field}{'=' if self.equal else '!='}{escaped}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Field selector: terms that must all hold, sorted by their text and unique; no terms select
    everything."""

    terms: tuple[FieldTerm, ...] = ()

    @classmethod
    def of(cls, terms: Iterable[FieldTerm]) -> FieldSelector:
        """Return a field selector with these terms, sorted and without duplicates."""
        return cls(tuple(sorted(set(terms), key=str)))

    @classmethod
    def parse(cls, text: str) -> FieldSelector:
        """Parse a field selector such as `spec.nodeName=a,status.phase!=Failed`; `==` is `=`, and
        empty terms are skipped."""
        return cls.of(_parse_term(term, text) for term in _TERM.findall(text))

    def matches(self, fields: Mapping[str, str] | Callable[[str], str]) -> bool:
        """Return whether an object is selected; `fields` has its fields, or returns the value of a
        field."""
        if isinstance(fields, Mapping):
            return all(term.matches(fields.get(term.field, "")) for term in self.terms)
        return all(term.matches(fields(term.field)) for term in self.terms)

    def __str__(self) -> str:
        return ",".join(str(term) for term in self.terms)


# An escaped comma belongs to its term; _VALUE refuses a lone backslash at the end.
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
