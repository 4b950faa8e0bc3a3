"""Definitions of a fleet's kinds: checked in as they are made, and as the contract has them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeocean.api.fleet.definitions import (
    definition,
    definitions,
    hub_definitions,
    member_definitions,
    render,
    write,
)
from kubeocean.api.fleet.kinds import CLUSTER, KINDS, NAMESPACED, Kind, scope_of
from kubeocean.api.fleet.schema import document
from kubeocean.runtime.objects import Json, Key

BY_NAME = {kind.resource.kind: kind for kind in KINDS}


def kind_name(kind: Kind[Any]) -> str:
    return kind.resource.kind


def schema_of(kind: str, version: str = "v1beta1") -> Json:
    versions = definition(BY_NAME[kind])["spec"]["versions"]
    (schema,) = (each["schema"] for each in versions if each["name"] == version)
    found: Json = schema["openAPIV3Schema"]
    return found


def at(schema: Json, path: str) -> Json:
    """Return the schema of a field; `[]` enters a list."""
    for name in path.split("."):
        schema = schema["properties"][name.removesuffix("[]")]
        schema = schema["items"] if name.endswith("[]") else schema
    return schema


# Files


def test_checked_in_definitions_are_those_that_are_made() -> None:
    directory = resources.files("kubeocean.api.fleet").joinpath("crds")
    checked_in = {file.name: file.read_text("utf-8") for file in directory.iterdir()}
    assert checked_in == render(), "run scripts/crds"


def test_definitions_are_written_as_they_are(tmp_path: Path) -> None:
    write(tmp_path)
    written = {path.stem: yaml.safe_load(path.read_text()) for path in tmp_path.iterdir()}
    assert written == {each["spec"]["names"]["plural"]: each for each in definitions()}


def test_only_applied_works_are_for_members() -> None:
    (member,) = member_definitions()
    assert member["spec"]["names"]["kind"] == "AppliedWork"
    assert len(hub_definitions()) == len(definitions()) - 1


# Tables of the contract

ALL, NEW, BETA = ("v1", "v1beta1", "v1alpha1"), ("v1", "v1beta1"), ("v1beta1",)
OLD, ALPHA = ("v1beta1", "v1alpha1"), ("v1alpha1",)

# kind: scope, served versions, short name, status subresource
TABLE: dict[str, tuple[str, tuple[str, ...], str, bool]] = {
    "MemberCluster": ("Cluster", NEW, "cluster", True),
    "InternalMemberCluster": ("Namespaced", NEW, "imc", True),
    "ClusterProfile": ("Namespaced", ALPHA, "", True),
    "ClusterResourcePlacement": ("Cluster", NEW, "crp", True),
    "ResourcePlacement": ("Namespaced", NEW, "rp", True),
    "ClusterResourcePlacementStatus": ("Namespaced", NEW, "crps", False),
    "ClusterSchedulingPolicySnapshot": ("Cluster", NEW, "csps", True),
    "SchedulingPolicySnapshot": ("Namespaced", BETA, "sps", True),
    "ClusterResourceSnapshot": ("Cluster", NEW, "crs", True),
    "ResourceSnapshot": ("Namespaced", BETA, "rs", True),
    "ClusterResourceBinding": ("Cluster", NEW, "crb", True),
    "ResourceBinding": ("Namespaced", BETA, "rb", True),
    "Work": ("Namespaced", NEW, "", True),
    "AppliedWork": ("Cluster", NEW, "", True),
    "ClusterResourceOverride": ("Cluster", ALL, "", False),
    "ResourceOverride": ("Namespaced", ALL, "", False),
    "ClusterResourceOverrideSnapshot": ("Cluster", ALL, "", False),
    "ResourceOverrideSnapshot": ("Namespaced", ALL, "", False),
    "ClusterResourceEnvelope": ("Cluster", BETA, "", False),
    "ResourceEnvelope": ("Namespaced", BETA, "", False),
    "ClusterResourcePlacementEviction": ("Cluster", OLD, "crpe", True),
    "ClusterResourcePlacementDisruptionBudget": ("Cluster", OLD, "crpdb", False),
    "ClusterStagedUpdateRun": ("Cluster", ALL, "csur", True),
    "StagedUpdateRun": ("Namespaced", NEW, "sur", True),
    "ClusterStagedUpdateStrategy": ("Cluster", ALL, "csus", True),
    "StagedUpdateStrategy": ("Namespaced", NEW, "sus", False),
    "ClusterApprovalRequest": ("Cluster", ALL, "careq", True),
    "ApprovalRequest": ("Namespaced", NEW, "areq", True),
    "EndpointSliceExport": ("Namespaced", ALPHA, "", True),
    "InternalServiceExport": ("Namespaced", ALPHA, "", True),
    "InternalServiceImport": ("Namespaced", ALPHA, "", True),
}


def test_kinds_are_those_of_the_contract() -> None:
    made = {}
    for each in definitions():
        spec = each["spec"]
        versions = spec["versions"]
        made[spec["names"]["kind"]] = (
            spec["scope"],
            tuple(version["name"] for version in versions if version["served"]),
            "".join(spec["names"].get("shortNames", ())),
            all(version.get("subresources") == {"status": {}} for version in versions),
        )
        assert [v["name"] for v in versions if v["storage"]] == [
            "v1beta1" if len(versions) > 1 or versions[0]["name"] != "v1alpha1" else "v1alpha1"
        ]
    assert made == TABLE


def test_categories_follow_the_group() -> None:
    categories = {
        "cluster.kubernetes-fleet.io": ["fleet", "fleet-cluster"],
        "placement.kubernetes-fleet.io": ["fleet", "fleet-placement"],
    }
    for each in definitions():
        spec = each["spec"]
        assert spec["names"].get("categories") == categories.get(spec["group"])


def test_plurals_are_regular() -> None:
    plurals = {
        each["spec"]["names"]["kind"]: each["spec"]["names"]["plural"] for each in definitions()
    }
    for kind, plural in plurals.items():
        singular = kind.lower()
        assert plural in (f"{singular}s", f"{singular}es", f"{singular.removesuffix('y')}ies")
    assert plurals["ClusterResourcePlacementStatus"] == "clusterresourceplacementstatuses"
    assert plurals["StagedUpdateStrategy"] == "stagedupdatestrategies"


def test_versions_differ_where_the_contract_says_so() -> None:
    for kind in ("ClusterResourcePlacement", "ResourcePlacement"):
        v1, v1beta1 = (
            at(schema_of(kind, version), "spec.strategy")["properties"]
            for version in ("v1", "v1beta1")
        )
        assert v1beta1.keys() - v1.keys() == {"deleteStrategy", "reportBackStrategy"}
    envelope = "status.selectedResources[].envelope.type"
    kind = "ClusterResourcePlacement"
    assert set(at(schema_of(kind), envelope)["enum"]) - set(
        at(schema_of(kind, "v1"), envelope)["enum"]
    ) == {"ConfigMap"}
    member = schema_of("MemberCluster"), schema_of("MemberCluster", "v1")
    specs, statuses = (
        [at(each, part)["properties"].keys() for each in member] for part in ("spec", "status")
    )
    assert specs[0] - specs[1] == {"deleteOptions"}
    assert statuses[0] - statuses[1] == {"namespaces"}


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("MemberCluster", "spec.heartbeatPeriodSeconds", 60),
        ("MemberCluster", "spec.deleteOptions.validationMode", "Strict"),
        ("InternalMemberCluster", "spec.heartbeatPeriodSeconds", 60),
        ("ClusterResourcePlacement", "spec.policy.placementType", "PickAll"),
        (
            "ClusterResourcePlacement",
            "spec.resourceSelectors[].selectionScope",
            "NamespaceWithResources",
        ),
        ("ClusterResourcePlacement", "spec.strategy.type", "RollingUpdate"),
        ("ClusterResourcePlacement", "spec.strategy.rollingUpdate.maxSurge", "25%"),
        ("ClusterResourcePlacement", "spec.strategy.rollingUpdate.maxUnavailable", "25%"),
        ("ResourcePlacement", "spec.strategy.rollingUpdate.unavailablePeriodSeconds", 60),
        ("ResourcePlacement", "spec.strategy.applyStrategy.type", "ClientSideApply"),
        (
            "ResourcePlacement",
            "spec.strategy.applyStrategy.comparisonOption",
            "PartialComparison",
        ),
        ("ResourcePlacement", "spec.strategy.applyStrategy.whenToApply", "Always"),
        ("ResourcePlacement", "spec.strategy.applyStrategy.whenToTakeOver", "Always"),
        ("ResourcePlacement", "spec.strategy.deleteStrategy.propagationPolicy", "Delete"),
        ("ResourcePlacement", "spec.strategy.reportBackStrategy.type", "Disabled"),
        ("ResourcePlacement", "spec.policy.tolerations[].operator", "Equal"),
        ("ResourcePlacement", "spec.policy.topologySpreadConstraints[].maxSkew", 1),
        (
            "ResourcePlacement",
            "spec.policy.topologySpreadConstraints[].whenUnsatisfiable",
            "DoNotSchedule",
        ),
        ("ResourcePlacement", "spec.revisionHistoryLimit", 10),
        ("ClusterResourcePlacement", "spec.statusReportingScope", "ClusterScopeOnly"),
        ("ClusterResourceOverride", "spec.placement.scope", "Cluster"),
        ("ResourceOverride", "spec.policy.overrideRules[].overrideType", "JSONPatch"),
        ("ClusterStagedUpdateRun", "spec.state", "Initialize"),
        ("StagedUpdateStrategy", "spec.stages[].maxConcurrency", 1),
    ],
)
def test_defaults_are_those_of_the_contract(kind: str, path: str, expected: object) -> None:
    assert at(schema_of(kind), path)["default"] == expected


def test_manifests_are_whole_objects() -> None:
    embedded = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert at(schema_of("Work"), "spec.workload.manifests[]") == embedded
    assert at(schema_of("ResourceSnapshot"), "spec.selectedResources[]") == embedded
    assert at(schema_of("ResourceEnvelope"), "data")["additionalProperties"] == embedded


def each_schema(schema: Any, path: str = "") -> list[tuple[str, Json]]:
    """List every place of a schema."""
    places = [(path, schema)]
    for name, each in schema.get("properties", {}).items():
        places += each_schema(each, f"{path}.{name}")
    for inside in ("items", "additionalProperties"):
        if inside in schema:
            places += each_schema(schema[inside], f"{path}[]")
    return places


def everywhere(kind: Kind[Any]) -> list[tuple[str, Json]]:
    versions = definition(kind)["spec"]["versions"]
    return [
        (f"{version['name']}{path}", schema)
        for version in versions
        for path, schema in each_schema(version["schema"]["openAPIV3Schema"])
    ]


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_conditions_are_maps_by_type(kind: Kind[Any]) -> None:
    for path, schema in everywhere(kind):
        if path.endswith(".conditions"):
            assert schema["x-kubernetes-list-type"] == "map"
            assert schema["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_every_field_is_described(kind: Kind[Any]) -> None:
    missing = [
        path
        for path, schema in everywhere(kind)
        if not schema.get("description") and not path.endswith(("[]", ".metadata"))
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("kind", "copy"),
    [
        ("ClusterSchedulingPolicySnapshot", "spec.policy"),
        ("ClusterResourceOverrideSnapshot", "spec.overrideSpec"),
        ("ClusterStagedUpdateRun", "status.stagedUpdateStrategySnapshot"),
    ],
)
def test_copies_of_what_users_wrote_are_not_checked_again(kind: str, copy: str) -> None:
    schema = at(schema_of(kind), copy)
    assert [path for path, each in each_schema(schema) if "x-kubernetes-validations" in each] == []


# Structs


def json_values(depth: int = 2) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts
    if not depth:
        return scalars
    inner = json_values(depth - 1)
    return scalars | st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def documents(schema: Json) -> st.SearchStrategy[Any]:
    """Make documents of a schema's shape; limits, enumerations and rules are ignored."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        if schema.get("type") == "object":
            return st.dictionaries(texts, json_values(), max_size=2)
        return json_values()
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(-(2**63), 2**63 - 1) | texts
    match schema["type"]:
        case "string":
            return texts
        case "integer":
            return st.integers(-(2**63), 2**63 - 1)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(documents(schema["items"]), max_size=2)
    if "additionalProperties" in schema:
        return st.dictionaries(texts, documents(schema["additionalProperties"]), max_size=2)
    required = set(schema.get("required", ()))
    properties = {
        name: documents(each)
        for name, each in schema.get("properties", {}).items()
        if name != "metadata"
    }
    return st.fixed_dictionaries(
        {name: each for name, each in properties.items() if name in required},
        optional={name: each for name, each in properties.items() if name not in required},
    )


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_whatever_a_server_stores_can_be_read_and_written_again(
    kind: Kind[Any], data: st.DataObject
) -> None:
    versions = definition(kind)["spec"]["versions"]
    schema = data.draw(st.sampled_from(versions))["schema"]["openAPIV3Schema"]
    stored = msgspec.json.encode(data.draw(documents(schema)) | {"metadata": {"name": "x"}})
    decode = msgspec.json.Decoder(kind.resource.type).decode
    read = decode(stored)
    assert read.name == "x"
    written = msgspec.json.encode(document(read) | {"metadata": {"name": "x"}})
    assert decode(written) == read


def test_an_empty_placement_decodes_to_what_controllers_assume() -> None:
    placement = msgspec.json.decode(b"{}", type=BY_NAME["ResourcePlacement"].resource.type)
    assert document(placement.spec) == {
        "resourceSelectors": [],
        "policy": {"placementType": "PickAll"},
        "strategy": {
            "type": "RollingUpdate",
            "applyStrategy": {
                "type": "ClientSideApply",
                "comparisonOption": "PartialComparison",
                "whenToApply": "Always",
                "whenToTakeOver": "Always",
            },
            "deleteStrategy": {"propagationPolicy": "Delete"},
            "reportBackStrategy": {"type": "Disabled"},
        },
        "revisionHistoryLimit": 10,
        "statusReportingScope": "ClusterScopeOnly",
    }


def test_required_fields_are_written_also_when_they_are_empty() -> None:
    placement = BY_NAME["ResourcePlacement"].resource.type
    status = {
        "placementStatuses": [
            {
                "clusterName": "m-1",
                "failedPlacements": [
                    {
                        "version": "v1",
                        "kind": "ConfigMap",
                        "name": "",
                        "condition": {
                            "type": "Applied",
                            "status": "False",
                            "reason": "FoundGenerateName",
                            "message": "",
                        },
                    }
                ],
                "driftedPlacements": [
                    {
                        "version": "v1",
                        "kind": "ConfigMap",
                        "name": "a",
                        "observationTime": "2026-01-01T00:00:00Z",
                        "targetClusterObservedGeneration": 0,
                        "firstDriftedObservedTime": "2026-01-01T00:00:00Z",
                    }
                ],
                "diffedPlacements": [
                    {
                        "version": "v1",
                        "kind": "ConfigMap",
                        "name": "b",
                        "observationTime": "2026-01-01T00:00:00Z",
                        "firstDiffedObservedTime": "2026-01-01T00:00:00Z",
                        "observedDiffs": [{"path": "/", "valueInHub": "(the whole object)"}],
                    }
                ],
            }
        ]
    }
    read = msgspec.convert({"status": status}, placement)
    assert document(read.status) == status
    run = BY_NAME["StagedUpdateRun"].resource.type
    stages = {"stagesStatus": [{"stageName": "canary", "clusters": []}]}
    assert document(msgspec.convert({"status": stages}, run).status) == stages


# Scopes


def test_the_namespace_of_a_placement_tells_its_kinds() -> None:
    assert scope_of(Key("", "crp")) is CLUSTER
    assert scope_of(Key("web", "rp")) is NAMESPACED
    for scope, namespaced in ((CLUSTER, False), (NAMESPACED, True)):
        assert scope.placements.kind == scope.prefix
        kinds = (
            scope.placements,
            scope.policy_snapshots,
            scope.resource_snapshots,
            scope.bindings,
            scope.runs,
            scope.strategies,
            scope.approvals,
        )
        assert {each.namespaced for each in kinds} == {namespaced}
