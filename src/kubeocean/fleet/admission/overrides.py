"""Rules for ClusterResourceOverrides and ResourceOverrides that the schema cannot express. Pure.

An object may be selected by one ClusterResourceOverride, and by one ResourceOverride in the
object's namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kubeocean.api.fleet.limits import MOST_OVERRIDES
from kubeocean.api.fleet.overrides import (
    ClusterResourceOverride,
    JsonPatchOperation,
    JsonPatchOperator,
    NamedResourceSelector,
    OverrideRule,
    OverrideType,
    ResourceOverride,
)
from kubeocean.api.fleet.placements import ResourceSelector
from kubeocean.fleet.admission.go_names import label_selector_problem, print_selector
from kubeocean.fleet.admission.reviews import (
    ALLOWED,
    Decision,
    Operation,
    Request,
    aggregate,
    denied,
)

__all__ = ["OverrideSummary", "decide_override", "summary_of"]

Override: TypeAlias = ClusterResourceOverride | ResourceOverride
_Selector: TypeAlias = ResourceSelector | NamedResourceSelector
_SelectedObject: TypeAlias = tuple[str, str, str, str]

_LIMITS: Final = {
    ClusterResourceOverride: f"clusterResourceOverride limit has been reached: at most"
    f" {MOST_OVERRIDES} cluster resources can be created.",
    ResourceOverride: f"resourceOverride limit has been reached: at most {MOST_OVERRIDES} resources"
    " can be created.",
}


@dataclass(frozen=True, slots=True)
class OverrideSummary:
    """Name of an override, and the objects that it selects."""

    name: str
    selected: frozenset[_SelectedObject]


def summary_of(override: Override) -> OverrideSummary:
    """Return the name and the selected objects of a stored override."""
    return OverrideSummary(override.name, frozenset(map(_selected, _selectors(override))))


def decide_override(
    request: Request, type_: type[Override], others: Sequence[OverrideSummary]
) -> Decision:
    """Allow or deny the creation or update of an override.

    :param others: overrides of the same kind that exist; of ResourceOverrides those in the
        namespace of the request.
    :raises BadReview: the object in the request cannot be read.
    """
    override: Override = request.decoded(type_)
    if override.deleting:
        return ALLOWED
    if request.operation is Operation.CREATE and len(others) >= MOST_OVERRIDES:
        return denied(_LIMITS[type_])
    selectors = _selectors(override)
    problems = _selectors_problems(selectors)
    if not problems:
        problems = [
            *_conflicts(override.name, selectors, others),
            *(
                problem
                for rule in override.spec.policy.override_rules
                for problem in _rule_problems(rule)
            ),
        ]
    return denied(aggregate(problems)) if problems else ALLOWED


def _selectors(override: Override) -> Sequence[_Selector]:
    if isinstance(override, ClusterResourceOverride):
        return override.spec.cluster_resource_selectors
    return override.spec.resource_selectors


def _selected(selector: _Selector) -> _SelectedObject:
    return selector.group, selector.version, selector.kind, selector.name


def _selectors_problems(selectors: Sequence[_Selector]) -> list[str]:
    problems: list[str] = []
    seen: set[_SelectedObject] = set()
    for selector in selectors:
        if isinstance(selector, ResourceSelector) and selector.label_selector is not None:
            problems.append(
                f"label selector is not supported for resource selection {print_selector(selector)}"
            )
        elif not selector.name:
            problems.append(
                f"resource name is required for resource selection {print_selector(selector)}"
            )
        elif _selected(selector) in seen:
            problems.append(
                f"resource selector {print_selector(selector)} already exists, and must be unique"
            )
        else:
            seen.add(_selected(selector))
    return problems


def _conflicts(
    name: str, selectors: Sequence[_Selector], others: Iterable[OverrideSummary]
) -> list[str]:
    holders: Mapping[_SelectedObject, str] = {
        selected: other.name
        for other in others
        if other.name != name
        for selected in other.selected
    }
    return [
        f"invalid resource selector {print_selector(selector)}: the resource has been selected by"
        f" both {name} and {holders[_selected(selector)]}, which is not supported"
        for selector in selectors
        if _selected(selector) in holders
    ]


def _rule_problems(rule: OverrideRule) -> list[str]:
    problems = []
    terms = rule.cluster_selector.cluster_selector_terms if rule.cluster_selector else ()
    for term in terms:
        has_others = term.property_selector is not None or term.property_sorter is not None
        if term.label_selector is None or has_others:
            problems.append(
                "invalid clusterSelector: only labelSelector is supported in clusterSelectorTerms"
            )
        elif problem := label_selector_problem(term.label_selector):
            problems.append(f"invalid clusterSelector: {problem}")
    if rule.override_type == OverrideType.DELETE:
        if rule.json_patch_overrides:
            problems.append("JSONPatchOverrides cannot be set when the override type is Delete")
        return problems
    if not rule.json_patch_overrides:
        problems.append("JSONPatchOverrides cannot be empty")
    for operation in rule.json_patch_overrides:
        text = f"{{{operation.op} {operation.path}}}"
        problems += [
            f"invalid JSONPatchOverride {text}: {problem}"
            for problem in _operation_problems(operation)
        ]
    return problems


def _operation_problems(operation: JsonPatchOperation) -> list[str]:
    problems = []
    if path_problem := _path_problem(operation.path):
        problems.append(path_problem)
    value: Any = operation.value
    if operation.op == JsonPatchOperator.REMOVE and value is not None:
        problems.append("remove operation cannot have value")
    return problems


def _path_problem(path: str) -> str:
    if not path:
        return "path cannot be empty"
    if not path.startswith("/"):
        return "path must start with /"
    first, *rest = path.split("/")[1:]
    if first in ("kind", "apiVersion"):
        return "cannot override typeMeta fields"
    if first == "status":
        return "cannot override status fields"
    if first == "metadata":
        if not rest:
            return "cannot override field metadata"
        if rest[0] not in ("annotations", "labels"):
            return "cannot override metadata fields except annotations and labels"
    if any(not part.strip() for part in (first, *rest)):
        return "path cannot contain empty string"
    return ""
