"""Rules for placements, overrides, evictions, budgets and workloads; and the defaults."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.overrides import ClusterResourceOverride, ResourceOverride
from kubeocean.api.fleet.placements import Placement
from kubeocean.fleet.admission.defaults import decide_defaults, defaulted_spec
from kubeocean.fleet.admission.evictions import decide_budget, decide_eviction, evicted_placement
from kubeocean.fleet.admission.overrides import OverrideSummary, decide_override, summary_of
from kubeocean.fleet.admission.placements import decide_placement, needs_kinds, selected_kinds
from kubeocean.fleet.admission.reviews import GroupVersionKind
from kubeocean.fleet.admission.workloads import decide_workload
from unit.fleet.admission.requests import request

NAMESPACES = {"group": "", "version": "v1", "kind": "Namespace", "name": "n"}
KINDS: dict[GroupVersionKind, bool | None] = {
    GroupVersionKind("", "v1", "Namespace"): False,
    GroupVersionKind("", "v1", "ConfigMap"): True,
}
WRAPPER = "deny create/update v1beta1 CRP has invalid fields "


def crp(name: str = "p", selectors: Any = (NAMESPACES,), **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"resourceSelectors": list(selectors), **spec}}


def verdict(new: dict[str, Any], old: dict[str, Any] | None = None) -> str:
    operation = "CREATE" if old is None else "UPDATE"
    submitted = request("ClusterResourcePlacement", operation, new=new, old=old)
    decision = decide_placement(submitted, KINDS)
    assert decision.allowed == (not decision.message)
    return decision.message


def affinity(**content: Any) -> dict[str, Any]:
    return {"affinity": {"clusterAffinity": content}}


def required(**term: Any) -> dict[str, Any]:
    terms = {"clusterSelectorTerms": [term]}
    return affinity(requiredDuringSchedulingIgnoredDuringExecution=terms)


def preferred(**term: Any) -> dict[str, Any]:
    terms = [{"weight": 1, "preference": term}]
    return affinity(preferredDuringSchedulingIgnoredDuringExecution=terms)


def test_a_plain_placement_is_allowed() -> None:
    assert verdict(crp()) == ""
    assert verdict(crp(policy={"placementType": "PickFixed", "clusterNames": []})) == ""


BAD = {"matchExpressions": [{"key": "some-key", "operator": "In", "values": []}]}
PRINTED = (
    "&LabelSelector{MatchLabels:map[string]string{},MatchExpressions:[]LabelSelectorRequirement"
    "{LabelSelectorRequirement{Key:some-key,Operator:In,Values:[],},},}"
)
PICK_N = {"placementType": "PickN", "numberOfClusters": 1}


def properties(*requirements: tuple[str, str, str]) -> dict[str, Any]:
    expressions = [
        {"name": name, "operator": operator, "values": [value]}
        for name, operator, value in requirements
    ]
    return required(propertySelector={"matchExpressions": expressions})


@pytest.mark.parametrize(
    ("placement", "part"),
    [
        (crp("x" * 64), "the name field cannot have length exceeding 63"),
        (
            crp(selectors=[NAMESPACES | {"kind": "Sail"}]),
            'failed to get GVR of the selector: no matches for kind "Sail" in version "v1"',
        ),
        (
            crp(selectors=[NAMESPACES | {"kind": "ConfigMap"}]),
            "the resource is not found in schema (please retry) or it is not a cluster scoped"
            " resource: /v1, Kind=ConfigMap",
        ),
        (
            crp(selectors=[{**NAMESPACES, "labelSelector": {}}]),
            "the labelSelector and name fields are mutually exclusive in selector",
        ),
        (
            crp(policy=PICK_N | required(labelSelector=BAD)),
            f"the labelSelector in cluster selector {PRINTED} is invalid: ",
        ),
        (
            crp(policy=PICK_N | preferred(labelSelector=BAD)),
            f"the labelSelector in preferred cluster selector {PRINTED} is invalid: ",
        ),
        (
            crp(policy={"placementType": "PickFixed", "clusterNames": ["a", "b", "a"]}),
            "cluster names must be unique for policy type PickFixed",
        ),
        (
            crp(policy={"placementType": "PickFixed", "clusterNames": ["A"]}),
            "PickFixed cluster name A is not a valid member name: ",
        ),
        (
            crp(policy={"placementType": "PickFixed", "clusterNames": ["a" * 64]}),
            f"PickFixed cluster name {'a' * 64} cannot have length exceeding 63",
        ),
        (
            crp(policy={"placementType": "PickAll"} | preferred(labelSelector={})),
            "PreferredDuringSchedulingIgnoredDuringExecution will be ignored for placement policy"
            " type PickAll",
        ),
        (
            crp(policy=PICK_N | required(propertySorter={"name": "a", "sortOrder": "Ascending"})),
            "PropertySorter is not allowed for RequiredDuringScheduling",
        ),
        (
            crp(policy=PICK_N | preferred(propertySelector={"matchExpressions": []})),
            "PropertySelector is not allowed for PreferredDuringScheduling",
        ),
        (
            crp(policy=PICK_N | preferred(propertySorter={"name": "!", "sortOrder": "x"})),
            "invalid property sort order x",
        ),
        (
            crp(policy=PICK_N | properties(("a", "Gt", "10"), ("a", "Lt", "5"))),
            "inconsistent requirements on property a: lower bound (10) and upper bound (5) exclude"
            " all values",
        ),
        (
            crp(policy=PICK_N | properties(("a", "Ge", "5"), ("a", "Lt", "5"))),
            "exclude all values",
        ),
        (
            crp(policy=PICK_N | properties(("a", "Eq", "1"), ("a", "Eq", "2"))),
            "conflicting Eq values 1 and 2",
        ),
        (
            crp(policy=PICK_N | properties(("a", "Eq", "1"), ("a", "Ne", "1000m"))),
            "conflicting Eq and Ne on same value 1",
        ),
        (
            crp(policy=PICK_N | properties(("a", "Eq", "1"), ("a", "Gt", "1"))),
            "eq value 1 violates lower bound 1",
        ),
        (
            crp(policy=PICK_N | properties(("a", "Eq", "3"), ("a", "Le", "2"))),
            "eq value 3 violates upper bound 2",
        ),
        (crp(policy=PICK_N | properties(("a", "Eq", "x"))), "is not a valid resource.Quantity"),
        (
            crp(policy=PICK_N | properties(("resources.kubernetes-fleet.io/x-cpu", "Eq", "1"))),
            "invalid capacity type in resource property name",
        ),
        (
            crp(policy=PICK_N | properties(("resources.kubernetes-fleet.io/total", "Eq", "1"))),
            "expected format is [PREFIX]/[CAPACITY_TYPE]-[RESOURCE_NAME]",
        ),
        (crp(policy=PICK_N | properties(("a/!", "Eq", "1"))), "property name segment ! is not"),
        (crp(policy=PICK_N | properties(("!/a", "Eq", "1"))), "property name first segment !"),
        (
            crp(policy={"tolerations": [{"key": "a!", "operator": "Exists"}]}),
            "invalid toleration key {Key:a! Operator:Exists Value: Effect:}",
        ),
        (
            crp(policy={"tolerations": [{"key": "a", "value": "!"}]}),
            "invalid toleration value",
        ),
        (
            crp(policy={"tolerations": [{"key": "a"}, {"key": "a"}]}),
            "tolerations must be unique",
        ),
        (
            crp(strategy={"type": "External", "rollingUpdate": {}}),
            "is not valid for ExternalRollout strategy type",
        ),
        (
            crp(strategy={"applyStrategy": {"serverSideApplyConfig": {"force": True}}}),
            "serverSideApplyConfig is only valid for ServerSideApply strategy type",
        ),
    ],
)
def test_bad_placements_are_refused(placement: dict[str, Any], part: str) -> None:
    message = verdict(placement)
    assert message.startswith(WRAPPER)
    assert part in message


def test_all_problems_of_a_placement_are_in_one_text() -> None:
    message = verdict(
        crp(
            "x" * 64,
            strategy={"type": "External", "rollingUpdate": {}},
            policy={"placementType": "PickFixed", "clusterNames": ["a", "a"]},
        )
    )
    assert message.startswith(f"{WRAPPER}[the name field")
    assert message.endswith("]")
    assert "PickFixed" in message
    assert "ExternalRollout" in message


def test_namespaced_kinds_are_allowed_within_one_namespace() -> None:
    within = NAMESPACES | {"selectionScope": "NamespaceWithResourceSelectors"}
    assert verdict(crp(selectors=[within, NAMESPACES | {"kind": "ConfigMap"}])) == ""


def test_updates_keep_the_type_and_the_tolerations() -> None:
    one, two = {"key": "a"}, {"key": "b"}
    old = crp(policy={"tolerations": [one]})
    assert verdict(crp(policy={"tolerations": [one, two]}), old) == ""
    denial = "tolerations have been updated/deleted, only additions to tolerations are allowed"
    assert verdict(crp(policy={"tolerations": [two]}), old) == denial
    assert verdict(crp(policy=PICK_N), crp()) == "placement type is immutable"
    assert verdict(crp(policy={"placementType": "PickAll"}), crp()) == ""


def test_a_placement_that_is_deleted_or_keeps_its_spec_is_not_checked() -> None:
    bad = crp(selectors=[NAMESPACES | {"kind": "Sail"}])
    finalized = copy.deepcopy(bad)
    finalized["metadata"]["finalizers"] = ["f"]
    assert verdict(finalized, bad) == ""
    deleted = copy.deepcopy(bad)
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert verdict(deleted, crp()) == ""
    submitted = request("ClusterResourcePlacement", "UPDATE", new=finalized, old=bad)
    assert not needs_kinds(submitted)
    assert selected_kinds(submitted.decoded(Placement)) == [GroupVersionKind("", "v1", "Sail")]
    assert verdict(bad, crp()).startswith(WRAPPER)


# Overrides

SELECTOR = {"group": "g", "version": "v1", "kind": "K", "name": "n"}
SHOWN = "{Group:g Version:v1 Kind:K Name:n LabelSelector:nil SelectionScope:NamespaceWithResources}"
TERMS = {"clusterSelectorTerms": [{"labelSelector": {"matchLabels": {"a": "b"}}}]}
OPERATION = {"op": "add", "path": "/metadata/labels/a", "value": 1}
RULE: dict[str, Any] = {"clusterSelector": TERMS, "jsonPatchOverrides": [OPERATION]}


def override(*selectors: Any, field: str = "clusterResourceSelectors", **rule: Any) -> Any:
    spec = {field: list(selectors), "policy": {"overrideRules": [RULE | rule]}}
    return {"metadata": {"name": "o"}, "spec": spec}


def override_verdict(
    body: Any, *others: OverrideSummary, type_: Any = ClusterResourceOverride
) -> str:
    return decide_override(request("X", new=body), type_, others).message


def test_a_plain_override_is_allowed() -> None:
    assert override_verdict(override(SELECTOR)) == ""
    assert override_verdict(override(SELECTOR, overrideType="Delete", jsonPatchOverrides=[])) == ""


def test_selectors_of_overrides_name_each_object_once() -> None:
    labelled = {**SELECTOR, "name": "", "labelSelector": {}}
    assert override_verdict(override(labelled)).startswith(
        "label selector is not supported for resource selection {Group:g"
    )
    assert override_verdict(override(SELECTOR | {"name": ""})).startswith(
        "resource name is required for resource selection {Group:g"
    )
    twice = override_verdict(override(SELECTOR, SELECTOR))
    assert twice == f"resource selector {SHOWN} already exists, and must be unique"


def test_an_object_has_one_override() -> None:
    other = OverrideSummary("other", frozenset({("g", "v1", "K", "n")}))
    assert override_verdict(override(SELECTOR), other) == (
        f"invalid resource selector {SHOWN}: the resource has been selected by both o and other,"
        " which is not supported"
    )
    own = OverrideSummary("o", other.selected)
    assert override_verdict(override(SELECTOR), own) == ""
    named = override(SELECTOR, field="resourceSelectors")
    text = override_verdict(named, other, type_=ResourceOverride)
    assert "{Group:g Version:v1 Kind:K Name:n}: the resource has been selected" in text
    decoded = request("X", new=named).decoded(ResourceOverride)
    assert summary_of(decoded) == OverrideSummary("o", other.selected)


def test_the_number_of_overrides_is_limited() -> None:
    others = [OverrideSummary(str(n), frozenset()) for n in range(100)]
    assert override_verdict(override(SELECTOR), *others) == (
        "clusterResourceOverride limit has been reached: at most 100 cluster resources can be"
        " created."
    )
    named = override(SELECTOR, field="resourceSelectors")
    assert override_verdict(named, *others, type_=ResourceOverride) == (
        "resourceOverride limit has been reached: at most 100 resources can be created."
    )
    assert override_verdict(override(SELECTOR), *others[1:]) == ""
    submitted = request("X", "UPDATE", new=override(SELECTOR))
    assert decide_override(submitted, ClusterResourceOverride, others).allowed


@pytest.mark.parametrize(
    ("operation", "part"),
    [
        ({"op": "remove", "path": "/a", "value": 1}, "remove operation cannot have value"),
        ({"op": "add", "path": "/kind"}, "cannot override typeMeta fields"),
        ({"op": "add", "path": "/apiVersion"}, "cannot override typeMeta fields"),
        ({"op": "add", "path": "/status"}, "cannot override status fields"),
        ({"op": "add", "path": "/status/x"}, "cannot override status fields"),
        ({"op": "add", "path": "/metadata"}, "cannot override field metadata"),
        (
            {"op": "add", "path": "/metadata/finalizers/0"},
            "cannot override metadata fields except annotations and labels",
        ),
        ({"op": "add", "path": ""}, "path cannot be empty"),
        ({"op": "add", "path": "a"}, "path must start with /"),
        ({"op": "add", "path": "/a//b"}, "path cannot contain empty string"),
        ({"op": "add", "path": "////kind"}, "path cannot contain empty string"),
    ],
)
def test_bad_patches_of_overrides_are_refused(operation: Any, part: str) -> None:
    assert part in override_verdict(override(SELECTOR, jsonPatchOverrides=[operation]))


def test_clusters_of_overrides_are_selected_by_labels_alone() -> None:
    sorter = {"clusterSelectorTerms": [{"propertySorter": {"name": "a"}}]}
    assert "only labelSelector is supported" in override_verdict(
        override(SELECTOR, clusterSelector=sorter)
    )
    bad = {"clusterSelectorTerms": [{"labelSelector": BAD}]}
    assert "In needs a value" in override_verdict(override(SELECTOR, clusterSelector=bad))
    assert "cannot be set when the override type is Delete" in override_verdict(
        override(SELECTOR, overrideType="Delete")
    )
    assert "JSONPatchOverrides cannot be empty" in override_verdict(
        override(SELECTOR, jsonPatchOverrides=[])
    )


# Evictions, budgets and workloads


def stored(**content: Any) -> Placement:
    return request("X", new=crp(**content)).decoded(Placement)


def test_evictions_depend_on_their_placement() -> None:
    submitted = request("X", new={"metadata": {}, "spec": {"placementName": "p"}})
    assert evicted_placement(submitted) == "p"
    assert decide_eviction(None).allowed
    assert decide_eviction(stored()).allowed
    fixed = stored(policy={"placementType": "PickFixed"})
    assert decide_eviction(fixed).message == (
        "cluster resource placement policy type PickFixed is not supported"
    )
    leaving = crp()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    decision = decide_eviction(request("X", new=leaving).decoded(Placement))
    assert decision.message == "cluster resource placement p is being deleted"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"minAvailable": 1}, ""),
        ({"maxUnavailable": 1}, "any specified max unavailable 1"),
        ({"maxUnavailable": "5%"}, "any specified max unavailable 5%"),
        ({"minAvailable": "5%"}, "min available as a percentage 5%"),
    ],
)
def test_budgets_of_pick_all_are_numbers(spec: Any, message: str) -> None:
    submitted = request("X", new={"metadata": {"name": "p"}, "spec": spec})
    prefix = "cluster resource placement policy type PickAll is not supported with "
    assert decide_budget(submitted, stored()).message == (f"{prefix}{message}" if message else "")
    assert decide_budget(submitted, None).allowed
    assert decide_budget(submitted, stored(policy=PICK_N)).allowed


def test_workloads_are_banned_outside_reserved_namespaces() -> None:
    for kind in ("Pod", "ReplicaSet"):
        banned = decide_workload(request(kind, namespace="default"))
        assert banned.message == (
            f"{kind} default/x creation is disallowed in the fleet hub cluster."
        )
        for namespace in ("fleet-system", "kube-system", "fleet-member-a"):
            assert decide_workload(request(kind, namespace=namespace)).allowed
        assert decide_workload(request(kind, "UPDATE", namespace="default")).allowed
    budget = decide_workload(request("PodDisruptionBudget", namespace="default"))
    assert budget.message.startswith("PDBs default/x cannot be directly created in the hub cluster")


# Defaults

APPLY = {
    "type": "ClientSideApply",
    "comparisonOption": "PartialComparison",
    "whenToApply": "Always",
    "whenToTakeOver": "Always",
}
ROLLING = {"maxUnavailable": "25%", "maxSurge": "25%", "unavailablePeriodSeconds": 60}


def test_an_empty_spec_gets_all_defaults() -> None:
    assert defaulted_spec({}) == {
        "policy": {"placementType": "PickAll"},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": ROLLING, "applyStrategy": APPLY},
        "revisionHistoryLimit": 10,
    }


def test_defaults_depend_on_other_fields() -> None:
    external = defaulted_spec({"strategy": {"type": "External"}})["strategy"]
    assert external == {"type": "External", "applyStrategy": APPLY}
    server_side = {"applyStrategy": {"type": "ServerSideApply"}}
    strategy = defaulted_spec({"strategy": server_side})["strategy"]
    assert strategy["applyStrategy"]["serverSideApplyConfig"] == {"force": False}
    policy = {
        "placementType": "PickN",
        "topologySpreadConstraints": [{"topologyKey": "a"}],
        "tolerations": [{"key": "a"}, {"key": "b", "operator": "Exists"}],
    }
    defaulted = defaulted_spec({"policy": policy})["policy"]
    assert defaulted["topologySpreadConstraints"] == [
        {"topologyKey": "a", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    ]
    operators = [each["operator"] for each in defaulted["tolerations"]]
    assert operators == ["Equal", "Exists"]
    kept = {"strategy": {"rollingUpdate": {"maxSurge": 1}}, "revisionHistoryLimit": 3}
    again = defaulted_spec(kept)
    assert again["strategy"]["rollingUpdate"] == ROLLING | {"maxSurge": 1}
    assert again["revisionHistoryLimit"] == 3


def patched(document: Any, operations: Any) -> Any:
    """Apply additions of JSON Patch."""
    result = copy.deepcopy(document)
    for operation in operations:
        assert operation["op"] == "add"
        *parents, last = operation["path"].split("/")[1:]
        target = result
        for step in parents:
            target = target[int(step)] if isinstance(target, list) else target[step]
        target[last.replace("~1", "/").replace("~0", "~")] = operation["value"]
    return result


_values = st.none() | st.integers(0, 3) | st.sampled_from(["x", "External", "ServerSideApply", ""])
_mappings = st.dictionaries(
    st.sampled_from(
        ["type", "applyStrategy", "rollingUpdate", "maxSurge", "tolerations", "key", "operator"]
    ),
    _values,
    max_size=3,
)
_specs = st.fixed_dictionaries(
    {},
    optional={
        "policy": _values | _mappings | st.fixed_dictionaries({"tolerations": st.lists(_mappings)}),
        "strategy": _values
        | _mappings
        | st.fixed_dictionaries({"applyStrategy": _mappings | _values}),
        "revisionHistoryLimit": _values,
    },
)


@given(_specs)
def test_the_patch_leads_to_the_defaults_and_nothing_is_lost(spec: dict[str, Any]) -> None:
    submitted = request("ClusterResourcePlacement", new={"metadata": {}, "spec": spec})
    decision = decide_defaults(submitted)
    assert decision.allowed
    result = patched({"spec": spec}, decision.patch)["spec"]
    assert result == defaulted_spec(spec)
    assert defaulted_spec(result) == result  # a second time changes nothing
    for field, value in spec.items():
        if value is not None and not isinstance(value, dict):
            assert result[field] == value


def test_a_placement_that_is_deleted_gets_no_defaults() -> None:
    deleted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
    assert decide_defaults(request("X", new=deleted)).patch == ()
    assert decide_defaults(request("X", new={"metadata": {}})).patch == ()
