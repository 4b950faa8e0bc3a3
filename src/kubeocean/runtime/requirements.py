"""Requirements: one condition on one label.

An operator means what it means to an API server: `NotIn` holds for an object without the label,
`Gt` and `Lt` hold for labels that are integers. A requirement that a server would refuse cannot be
made: it is a `ConfigError` that names the field and the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import join_path
from kubeocean.runtime.labels import check_label_key, check_label_value

__all__ = ["Expression", "Operator", "Requirement"]


class Operator(StrEnum):
    """What a requirement asks of a label; spelled as documents spell it."""

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
    """One condition on one label; made by `of`, which checks it. Values are sorted and unique."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, key: str, operator: Operator, values: Iterable[str] = (), *, field: str = ""
    ) -> Requirement:
        """A requirement that makes sense; `field` is where it was found."""
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
        """Whether an object with these labels meets it."""
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
    """A requirement as documents have it.

    A field that we do not know is an error: to ignore it could only select more than was meant.
    """

    key: str
    operator: str
    values: list[str] | None = None

    def requirement(self, operators: Iterable[Operator], *, field: str = "") -> Requirement:
        """The requirement, if its operator is one of these and it makes sense."""
        known = {str(operator): operator for operator in operators}
        if self.operator not in known:
            message = f"must be one of {', '.join(known)}"
            raise ConfigError(message, field=join_path(field, ".operator"), value=self.operator)
        return Requirement.of(self.key, known[self.operator], self.values or (), field=field)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}")


def _integer(text: str) -> int | None:
    """The number, if it is one and fits 64 bits; a server compares no others."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
