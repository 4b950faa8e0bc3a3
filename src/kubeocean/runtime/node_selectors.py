"""Node selectors: which nodes are selected, by their labels and their name.

A selector is a list of terms of which one must hold; of a term every requirement must hold. A term
without requirements holds for no node, and a selector without terms selects no node: whether the
absence of a selector means all nodes is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import join_path, read_document
from kubeocean.runtime.objects import Json
from kubeocean.runtime.selectors import Expression, Operator, Requirement, check_subdomain

__all__ = ["NameRequirement", "NodeSelector", "NodeTerm"]

_NAME_FIELD: Final = "metadata.name"  # the only field that nodes can be selected by


@dataclass(frozen=True, slots=True)
class NameRequirement:
    """Requirement that the node has, or does not have, this name."""

    name: str
    equal: bool = True

    def matches(self, name: str) -> bool:
        return (name == self.name) is self.equal


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Requirements of a node selector that must all hold; a term without requirements matches no
    node."""

    labels: tuple[Requirement, ...] = ()
    names: tuple[NameRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the node of this name, with these labels, meets all requirements of the
        term."""
        if not self.labels and not self.names:
            return False
        return all(each.matches(labels) for each in self.labels) and all(
            each.matches(name) for each in self.names
        )


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Node selector: terms of which one must hold."""

    terms: tuple[NodeTerm, ...] = ()

    @classmethod
    def from_document(cls, document: Json, *, field: str = "") -> NodeSelector:
        """Parse a NodeSelector document; `field` is the path of the document, for errors."""
        content = read_document(document, _Document, field=field)
        at = join_path(field, ".nodeSelectorTerms")
        return cls(
            tuple(
                term.checked(field=f"{at}[{index}]")
                for index, term in enumerate(content.node_selector_terms or ())
            )
        )

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the node of this name, with these labels, is selected."""
        return any(term.matches(name, labels) for term in self.terms)


class _Term(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None

    def checked(self, *, field: str) -> NodeTerm:
        return NodeTerm(
            labels=tuple(
                each.requirement(Operator, field=f"{field}.matchExpressions[{index}]")
                for index, each in enumerate(self.match_expressions or ())
            ),
            names=tuple(
                _name_requirement(each, field=f"{field}.matchFields[{index}]")
                for index, each in enumerate(self.match_fields or ())
            ),
        )


class _Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    node_selector_terms: list[_Term] | None = None


def _name_requirement(expression: Expression, *, field: str) -> NameRequirement:
    if expression.key != _NAME_FIELD:
        raise ConfigError(f"must be {_NAME_FIELD}", field=f"{field}.key", value=expression.key)
    if expression.operator not in (Operator.IN, Operator.NOT_IN):
        message = f"must be {Operator.IN} or {Operator.NOT_IN}"
        raise ConfigError(message, field=f"{field}.operator", value=expression.operator)
    values = expression.values or []
    if len(values) != 1:
        raise ConfigError("must be one name", field=f"{field}.values", value=values)
    check_subdomain(values[0], field=f"{field}.values[0]")
    return NameRequirement(values[0], expression.operator == Operator.IN)
