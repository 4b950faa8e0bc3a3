"""Rules for ClusterResourcePlacements, and for their evictions and disruption budgets, that the
schema cannot express. Pure.

An update that does not change the spec, and every update of a placement that is being deleted, is
allowed: controllers must be able to write finalizers of a placement that was valid once.

An eviction or a budget without a ClusterResourcePlacement is allowed: the placement may be created
later, and the controller of evictions reports a missing placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubeocean.api.fleet.clusters import LONGEST_NAME
from kubeocean.api.fleet.evictions import DisruptionBudget, PlacementEviction
from kubeocean.api.fleet.placements import (
    Placement,
    PlacementSpec,
    ResourceSelector,
    SelectionScope,
)
from kubeocean.api.fleet.policies import (
    ClusterAffinity,
    ClusterSelectorTerm,
    ClusterToleration,
    PlacementPolicy,
    PlacementType,
)
from kubeocean.api.fleet.strategies import ApplyStrategyType, RolloutStrategy, RolloutStrategyType
from kubeocean.fleet.admission.go_names import (
    label_selector_problem,
    label_value_problems,
    print_label_selector,
    print_selector,
    qualified_name_problems,
    subdomain_problems,
)
from kubeocean.fleet.admission.property_rules import requirements_problems, sorter_problems
from kubeocean.fleet.admission.reviews import (
    ALLOWED,
    AdmissionDecision,
    AdmissionRequest,
    Operation,
    aggregate,
    denied,
)
from kubeocean.runtime.objects import GroupVersionKind

__all__ = [
    "decide_budget",
    "decide_eviction",
    "decide_placement",
    "evicted_placement",
    "needs_kinds",
    "selected_kinds",
]

_WRAPPER: Final = "deny create/update v1beta1 CRP has invalid fields"


def selected_kinds(placement: Placement) -> list[GroupVersionKind]:
    """Return the kinds that the selectors of a placement name."""
    return list(dict.fromkeys(_kind(each) for each in placement.spec.resource_selectors))


def needs_kinds(request: AdmissionRequest) -> bool:
    """Whether the decision on a ClusterResourcePlacement depends on the kinds that the hub serves.

    :raises BadReview: an object in the request cannot be read.
    """
    return not _is_exempt(request)


def decide_placement(
    request: AdmissionRequest, namespaced: Mapping[GroupVersionKind, bool | None]
) -> AdmissionDecision:
    """Allow or deny the creation or update of a ClusterResourcePlacement.

    :param namespaced: of each selected kind whether its objects are namespaced; None if the hub
        does not serve the kind.
    :raises BadReview: an object in the request cannot be read.
    """
    if _is_exempt(request):
        return ALLOWED
    placement = request.decoded(Placement)
    if request.operation is Operation.UPDATE:
        old = request.old(Placement)
        if old.spec.policy.placement_type != placement.spec.policy.placement_type:
            return denied("placement type is immutable")
        if not set(old.spec.policy.tolerations) <= set(placement.spec.policy.tolerations):
            return denied(
                "tolerations have been updated/deleted, only additions to tolerations are allowed"
            )
    problems = _problems(placement, namespaced)
    return denied(f"{_WRAPPER} {aggregate(problems)}") if problems else ALLOWED


def _is_exempt(request: AdmissionRequest) -> bool:
    if request.operation is not Operation.UPDATE:
        return False
    old, new = request.old(Placement), request.decoded(Placement)
    return old.deleting or new.deleting or old.spec == new.spec


def _problems(
    placement: Placement, namespaced: Mapping[GroupVersionKind, bool | None]
) -> list[str]:
    spec, problems = placement.spec, []
    if len(placement.name) > LONGEST_NAME:
        problems.append(f"the name field cannot have length exceeding {LONGEST_NAME}")
    selectors, is_complete = _selectors_problems(spec, namespaced)
    problems += selectors
    if not is_complete:
        return problems
    if policy := _policy_problems(spec.policy):
        problems.append(f"the placement policy field is invalid: {aggregate(policy)}")
    if strategy := _strategy_problems(spec.strategy):
        problems.append(f"the rollout Strategy field  is invalid: {aggregate(strategy)}")
    return problems


def _selectors_problems(
    spec: PlacementSpec, namespaced: Mapping[GroupVersionKind, bool | None]
) -> tuple[list[str], bool]:
    """Return the problems of resource selectors, and whether further checks can be made.

    False: the hub does not serve a selected kind, so that nothing else can be checked.
    """
    problems = []
    takes_namespaced = any(_selects_within_namespace(each) for each in spec.resource_selectors)
    for selector in spec.resource_selectors:
        if selector.label_selector is not None:
            if selector.name:
                problems.append(
                    "the labelSelector and name fields are mutually exclusive in selector"
                    f" {print_selector(selector)}"
                )
            problems += _label_problems(selector.label_selector, "resource selector")
        kind = _kind(selector)
        is_namespaced = namespaced.get(kind)
        if is_namespaced is None:
            version = f"{kind.group}/{kind.version}" if kind.group else kind.version
            problems.append(
                f"failed to get GVR of the selector: no matches for kind"
                f' "{kind.kind}" in version "{version}"'
            )
            return problems, False
        if is_namespaced and not takes_namespaced:
            problems.append(
                "the resource is not found in schema (please retry) or it is not a cluster scoped"
                f" resource: {kind}"
            )
    return problems, True


def _selects_within_namespace(selector: ResourceSelector) -> bool:
    return (
        _kind(selector) == GroupVersionKind("", "v1", "Namespace")
        and selector.selection_scope == SelectionScope.NAMESPACE_WITH_RESOURCE_SELECTORS
    )


def _kind(selector: ResourceSelector) -> GroupVersionKind:
    return GroupVersionKind(selector.group, selector.version, selector.kind)


def _policy_problems(policy: PlacementPolicy) -> list[str]:
    if policy.placement_type == PlacementType.PICK_FIXED:
        return _fixed_problems(policy.cluster_names)
    problems = []
    if policy.affinity is not None and policy.affinity.cluster_affinity is not None:
        problems += _affinity_problems(policy.affinity.cluster_affinity, policy.placement_type)
    return problems + _tolerations_problems(policy.tolerations)


def _fixed_problems(names: Sequence[str]) -> list[str]:
    problems: list[str] = []
    for index, name in enumerate(names):
        if invalid := subdomain_problems(name):
            problems.append(
                f"PickFixed cluster name {name} is not a valid member name: {'; '.join(invalid)}"
            )
        if len(name) > LONGEST_NAME:
            problems.append(
                f"PickFixed cluster name {name} cannot have length exceeding {LONGEST_NAME}"
            )
        if name in names[:index]:
            problems.append("cluster names must be unique for policy type PickFixed")
            break
    return problems


def _affinity_problems(affinity: ClusterAffinity, placement_type: str) -> list[str]:
    problems = []
    required = affinity.required_during_scheduling_ignored_during_execution
    for term in required.cluster_selector_terms if required is not None else ():
        problems += _label_problems(term.label_selector, "cluster selector")
        if term.property_sorter is not None:
            problems.append(
                "PropertySorter is not allowed for RequiredDuringSchedulingIgnoredDuringExecution"
                " affinity"
            )
        if term.property_selector is not None:
            problems += requirements_problems(term.property_selector.match_expressions)
    preferred = affinity.preferred_during_scheduling_ignored_during_execution
    if preferred and placement_type == PlacementType.PICK_ALL:
        problems.append(
            "PreferredDuringSchedulingIgnoredDuringExecution will be ignored for placement policy"
            f" type {placement_type}"
        )
        return problems
    for each in preferred:
        problems += _preference_problems(each.preference)
    return problems


def _preference_problems(term: ClusterSelectorTerm) -> list[str]:
    problems = _label_problems(term.label_selector, "preferred cluster selector")
    if term.property_selector is not None:
        problems.append(
            "PropertySelector is not allowed for PreferredDuringSchedulingIgnoredDuringExecution"
            " affinity"
        )
    if term.property_sorter is not None:
        problems += sorter_problems(term.property_sorter)
    return problems


def _label_problems(selector: Mapping[str, object] | None, parent: str) -> list[str]:
    problem = label_selector_problem(selector)
    if not problem:
        return []
    return [f"the labelSelector in {parent} {print_label_selector(selector)} is invalid: {problem}"]


def _tolerations_problems(tolerations: Sequence[ClusterToleration]) -> list[str]:
    problems: list[str] = []
    for index, each in enumerate(tolerations):
        text = (
            f"{{Key:{each.key} Operator:{each.operator} Value:{each.value} Effect:{each.effect}}}"
        )
        if each.key:
            problems += [
                f"invalid toleration key {text}: {problem}"
                for problem in qualified_name_problems(each.key)
            ]
        problems += [
            f"invalid toleration value {text}: {problem}"
            for problem in label_value_problems(each.value)
        ]
        if each in tolerations[:index]:
            problems.append(f"toleration {text} already exists, tolerations must be unique")
    return problems


def _strategy_problems(strategy: RolloutStrategy) -> list[str]:
    problems = []
    if strategy.rolling_update is not None and strategy.type == RolloutStrategyType.EXTERNAL:
        problems.append("rollingUpdateConifg is not valid for ExternalRollout strategy type")
    apply = strategy.apply_strategy
    is_server_side = apply.type == ApplyStrategyType.SERVER_SIDE_APPLY
    if apply.server_side_apply_config is not None and not is_server_side:
        problems.append("serverSideApplyConfig is only valid for ServerSideApply strategy type")
    return problems


def evicted_placement(request: AdmissionRequest) -> str:
    """Return the name of the placement that the eviction in a request names.

    :raises BadReview: the object in the request cannot be read.
    """
    return request.decoded(PlacementEviction).spec.placement_name


def decide_eviction(placement: Placement | None) -> AdmissionDecision:
    """Allow or deny the creation of an eviction of `placement`."""
    if placement is None:
        return ALLOWED
    if placement.deleting:
        return denied(f"cluster resource placement {placement.name} is being deleted")
    if placement.spec.policy.placement_type == PlacementType.PICK_FIXED:
        return denied("cluster resource placement policy type PickFixed is not supported")
    return ALLOWED


def decide_budget(request: AdmissionRequest, placement: Placement | None) -> AdmissionDecision:
    """Allow or deny a disruption budget for `placement`, which has the same name.

    A placement of type PickAll has no target number of clusters, so its budget can only set
    minAvailable, as a number of clusters.

    :raises BadReview: the object in the request cannot be read.
    """
    spec = request.decoded(DisruptionBudget).spec
    if placement is None or placement.spec.policy.placement_type != PlacementType.PICK_ALL:
        return ALLOWED
    problems = []
    prefix = "cluster resource placement policy type PickAll is not supported with"
    if spec.max_unavailable is not None:
        problems.append(f"{prefix} any specified max unavailable {spec.max_unavailable}")
    if isinstance(spec.min_available, str):
        problems.append(f"{prefix} min available as a percentage {spec.min_available}")
    return denied(aggregate(problems)) if problems else ALLOWED
