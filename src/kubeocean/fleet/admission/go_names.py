"""Validation messages for names and label values, and printed selectors, as Go produces them.

KubeFleet's users and tests read these texts in the errors of the API server: the messages of
Kubernetes' validation of names, and the forms in which Go prints selectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubeocean.api.fleet.overrides import NamedResourceSelector
from kubeocean.api.fleet.placements import ResourceSelector
from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import LabelSelector

__all__ = [
    "label_selector_problem",
    "label_value_problems",
    "print_label_selector",
    "print_selector",
    "qualified_name_problems",
    "subdomain_problems",
]

_LONGEST_NAME: Final = 63
_LONGEST_SUBDOMAIN: Final = 253
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME_CHARACTERS: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character"
)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_SUBDOMAIN_CHARACTERS: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.',"
    " and must start and end with an alphanumeric character"
)


def qualified_name_problems(name: str) -> list[str]:
    """Return all problems of a qualified name: a name, optionally after a DNS subdomain and `/`."""
    prefix, slash, part = name.partition("/")
    if not slash:
        prefix, part = "", name
    elif "/" in part:
        return [
            f"a qualified name {_NAME_CHARACTERS} with an optional DNS subdomain prefix and '/'"
        ]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {problem}" for problem in subdomain_problems(prefix)]
    if not part:
        problems.append("name part must be non-empty")
    elif len(part) > _LONGEST_NAME:
        problems.append(f"name part must be no more than {_LONGEST_NAME} characters")
    if not _NAME.fullmatch(part):
        problems.append(f"name part {_NAME_CHARACTERS}")
    return problems


def label_value_problems(value: str) -> list[str]:
    """Return all problems of the value of a label."""
    problems = []
    if len(value) > _LONGEST_NAME:
        problems.append(f"must be no more than {_LONGEST_NAME} characters")
    if value and not _NAME.fullmatch(value):
        problems.append(f"a valid label must be an empty string or {_NAME_CHARACTERS}")
    return problems


def subdomain_problems(name: str) -> list[str]:
    """Return all problems of a DNS subdomain."""
    problems = []
    if len(name) > _LONGEST_SUBDOMAIN:
        problems.append(f"must be no more than {_LONGEST_SUBDOMAIN} characters")
    if not _SUBDOMAIN.fullmatch(name):
        problems.append(_SUBDOMAIN_CHARACTERS)
    return problems


def label_selector_problem(document: Mapping[str, Any] | None) -> str:
    """Return why a label selector cannot be used; empty if it can."""
    if document is None:
        return ""
    try:
        LabelSelector.from_document(dict(document))
    except ConfigError as error:
        return str(error)
    return ""


def print_label_selector(document: Mapping[str, Any] | None) -> str:
    """Return a label selector as Go prints a pointer to a `metav1.LabelSelector`."""
    if document is None:
        return "nil"
    labels = "".join(
        f"{key}: {value}," for key, value in sorted((document.get("matchLabels") or {}).items())
    )
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{each.get('key', '')},Operator:{each.get('operator', '')},"
        f"Values:[{' '.join(each.get('values') or ())}],}},"
        for each in document.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )


def print_selector(selector: ResourceSelector | NamedResourceSelector) -> str:
    """Return a ResourceSelector as Go prints the struct."""
    fields: Iterable[tuple[str, str]] = (
        ("Group", selector.group),
        ("Version", selector.version),
        ("Kind", selector.kind),
        ("Name", selector.name),
    )
    if isinstance(selector, ResourceSelector):
        fields = (
            *fields,
            ("LabelSelector", print_label_selector(selector.label_selector)),
            ("SelectionScope", selector.selection_scope),
        )
    return f"{{{' '.join(f'{name}:{value}' for name, value in fields)}}}"
