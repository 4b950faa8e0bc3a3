"""Kinds of a fleet on a real API server: accepted, defaulted, refused, with which words."""

from __future__ import annotations

import contextlib
import copy
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeocean.api.fleet.definitions import definitions
from kubeocean.api.fleet.kinds import KINDS, Kind
from kubeocean.errors import BadRequest, Invalid
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json, Resource
from support.fleet_kinds import install_fleet_kinds

SAMPLES: dict[str, Json] = {
    each["kind"]: each
    for each in yaml.safe_load_all(Path(__file__).with_name("samples.yaml").read_text("utf-8"))
}
BY_NAME = {kind.resource.kind: kind for kind in KINDS}
NOW = "2026-01-01T00:00:00Z"
CONDITION = {
    "type": "Tested",
    "status": "True",
    "reason": "Tested",
    "message": "",
    "lastTransitionTime": NOW,
}


@pytest.fixture(scope="module")
async def server(client: Client) -> Client:
    """Return the shared server with the kinds of a fleet."""
    await install_fleet_kinds(client)
    return client


def kind_name(kind: Kind[Any]) -> str:
    return kind.resource.kind


def in_version(kind: str, version: str) -> Resource[Any]:
    return replace(BY_NAME[kind].resource, version=version)


def sample(kind: str, namespace: str) -> tuple[Resource[Any], Json]:
    """Return a kind in the version of its sample, and the sample under a name of its own."""
    document = copy.deepcopy(SAMPLES[kind])
    resource = in_version(kind, document["apiVersion"].rpartition("/")[2])
    document["metadata"]["name"] = f"t-{uuid.uuid4().hex[:10]}"
    if resource.namespaced:
        document["metadata"]["namespace"] = namespace
    return resource, document


async def stored(server: Client, resource: Resource[Any], document: Json) -> Json:
    """Read an object back, whole."""
    name, namespace = document["metadata"]["name"], document["metadata"].get("namespace", "")
    return await server.request_json("GET", resource.path(namespace, name))


def content(document: Json) -> Json:
    return {name: document[name] for name in document.keys() - {"apiVersion", "kind", "metadata"}}


# Definitions


async def test_a_server_establishes_every_kind(server: Client) -> None:
    for definition in definitions():
        name = definition["metadata"]["name"]
        known = await server.get(CUSTOM_RESOURCE_DEFINITIONS, name, keep_raw=True)
        conditions = {
            each["type"]: each["status"] for each in known.content()["status"]["conditions"]
        }
        assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
        assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
async def test_a_server_lists_every_version_with_its_names(server: Client, kind: Kind[Any]) -> None:
    resource = kind.resource
    for version in kind.versions:
        listed = await server.request_json("GET", f"/apis/{resource.group}/{version}")
        resources = {each["name"]: each for each in listed["resources"]}
        served = resources[resource.plural]
        assert (served["kind"], served["namespaced"]) == (resource.kind, resource.namespaced)
        assert served.get("shortNames", []) == ([kind.short_name] if kind.short_name else [])
        assert tuple(served.get("categories", ())) == kind.categories
        assert (f"{resource.plural}/status" in resources) is kind.has_status


# Samples

# Defaults that the server adds to a sample, if any; lists are compared entry by entry
APPLY_DEFAULTS = {
    "type": "ClientSideApply",
    "comparisonOption": "PartialComparison",
    "whenToApply": "Always",
    "whenToTakeOver": "Always",
}
SELECTOR_DEFAULTS = {"selectionScope": "NamespaceWithResources"}
DEFAULTS: dict[str, Json] = {
    "MemberCluster": {
        "spec": {"heartbeatPeriodSeconds": 60, "deleteOptions": {"validationMode": "Strict"}}
    },
    "InternalMemberCluster": {"spec": {"heartbeatPeriodSeconds": 60}},
    "ClusterResourcePlacement": {
        "spec": {
            "resourceSelectors": [SELECTOR_DEFAULTS, SELECTOR_DEFAULTS],
            "policy": {
                "topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
                "tolerations": [{"operator": "Equal"}],
            },
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "unavailablePeriodSeconds": 60},
                "applyStrategy": APPLY_DEFAULTS,
            },
            "revisionHistoryLimit": 10,
            "statusReportingScope": "ClusterScopeOnly",
        }
    },
    "ResourcePlacement": {
        "spec": {
            "resourceSelectors": [SELECTOR_DEFAULTS],
            "policy": {"placementType": "PickAll"},
            "revisionHistoryLimit": 10,
            "statusReportingScope": "ClusterScopeOnly",
        }
    },
    "ClusterResourceBinding": {"spec": {"applyStrategy": APPLY_DEFAULTS}},
    "Work": {"spec": {"applyStrategy": APPLY_DEFAULTS}},
    "ClusterResourceOverride": {
        "spec": {
            "placement": {"scope": "Cluster"},
            "clusterResourceSelectors": [SELECTOR_DEFAULTS],
            "policy": {"overrideRules": [{"overrideType": "JSONPatch"}]},
        }
    },
    "ClusterResourceOverrideSnapshot": {
        "spec": {"overrideSpec": {"clusterResourceSelectors": [SELECTOR_DEFAULTS]}}
    },
    "ResourceOverrideSnapshot": {
        "spec": {"overrideSpec": {"policy": {"overrideRules": [{"overrideType": "JSONPatch"}]}}}
    },
    "ClusterStagedUpdateRun": {"spec": {"state": "Initialize"}},
    "ClusterStagedUpdateStrategy": {"spec": {"stages": [{"maxConcurrency": 1}, {}]}},
}


def filled(given: Any, defaults: Any) -> Any:
    """Return a document with defaults where it has nothing."""
    if isinstance(given, dict) and isinstance(defaults, dict):
        return defaults | {
            name: filled(value, defaults[name]) if name in defaults else value
            for name, value in given.items()
        }
    if isinstance(given, list) and isinstance(defaults, list):
        return [filled(*pair) for pair in zip(given, defaults, strict=True)]
    return given


def test_each_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == BY_NAME.keys()


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
async def test_samples_apply_unchanged_and_are_defaulted(
    server: Client, namespace: str, kind: Kind[Any]
) -> None:
    resource, document = sample(kind.resource.kind, namespace)
    name = document["metadata"]["name"]
    await server.patch(
        resource, name, ApplyPatch(document), document["metadata"].get("namespace", "")
    )
    expected = filled(content(document), DEFAULTS.get(kind.resource.kind, {}))
    assert content(await stored(server, resource, document)) == expected


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
async def test_each_version_reads_and_decodes(
    server: Client, namespace: str, kind: Kind[Any]
) -> None:
    resource, document = sample(kind.resource.kind, namespace)
    created = await server.create(resource, document)
    for version in kind.versions:
        other = in_version(kind.resource.kind, version)
        read = await server.get(other, created.name, created.namespace)
        assert (read.uid, read.metadata.generation) == (created.uid, 1)
        if version in (resource.version, kind.resource.version):
            assert {f: getattr(read, f) for f in ("spec", "data") if hasattr(read, f)} == {
                f: getattr(created, f) for f in ("spec", "data") if hasattr(created, f)
            }


@pytest.mark.parametrize("kind", [each for each in KINDS if each.has_status], ids=kind_name)
async def test_status_is_a_subresource(server: Client, namespace: str, kind: Kind[Any]) -> None:
    resource, document = sample(kind.resource.kind, namespace)
    created = await server.create(resource, document | {"status": {"conditions": [CONDITION]}})
    assert "status" not in await stored(server, resource, document)
    if kind.resource.kind in ("ClusterStagedUpdateStrategy", "AppliedWork"):
        return  # they have no conditions
    required = {"observedCRPGeneration": 1} if "Scheduling" in kind.resource.kind else {}
    status = {"conditions": [CONDITION], **required}
    after = await server.patch(
        resource,
        created.name,
        MergePatch({"status": status}),
        created.namespace,
        subresource="status",
    )
    assert after.metadata.generation == 1
    assert (await stored(server, resource, document))["status"] == status


def test_kinds_without_status_subresource_have_no_status() -> None:
    for definition in definitions():
        for version in definition["spec"]["versions"]:
            if "subresources" not in version:
                assert "status" not in version["schema"]["openAPIV3Schema"]["properties"]


# Statuses as agents write them

DEVIATION = {"version": "v1", "kind": "ConfigMap", "name": "settings", "namespace": "web"}
STATUSES: dict[str, Json] = {
    "MemberCluster": {
        "conditions": [CONDITION],
        "properties": {"kubernetes-fleet.io/node-count": {"value": "3", "observationTime": NOW}},
        "resourceUsage": {
            "capacity": {"cpu": "4", "memory": "1.5Gi"},
            "allocatable": {"cpu": 4},
            "available": {"cpu": "500m"},
            "observationTime": NOW,
        },
        "namespaces": {"web": "web-work", "default": ""},
        "agentStatus": [
            {"type": "MemberAgent", "conditions": [CONDITION], "lastReceivedHeartbeat": NOW}
        ],
    },
    "ClusterProfile": {
        "conditions": [CONDITION],
        "version": {"kubernetes": "v1.34.0"},
        "accessProviders": [
            {
                "name": "KubeFleet",
                "cluster": {
                    "server": "https://127.0.0.1:6443",
                    "certificate-authority-data": "MDEyMw==",
                },
            }
        ],
    },
    "ClusterResourcePlacement": {
        "conditions": [CONDITION],
        "observedResourceIndex": "0",
        "selectedResources": [
            DEVIATION | {"envelope": {"name": "e", "namespace": "web", "type": "ResourceEnvelope"}}
        ],
        "placementStatuses": [
            {
                "clusterName": "member-1",
                "observedResourceIndex": "0",
                "applicableClusterResourceOverrides": ["web-0"],
                "applicableResourceOverrides": [{"name": "settings-0", "namespace": "web"}],
                "conditions": [CONDITION],
                "failedPlacements": [DEVIATION | {"name": "", "condition": CONDITION}],
                "driftedPlacements": [
                    DEVIATION
                    | {
                        "observationTime": NOW,
                        "firstDriftedObservedTime": NOW,
                        "targetClusterObservedGeneration": 0,
                        "observedDrifts": [
                            {"path": "/data/a", "valueInMember": "1", "valueInHub": "2"}
                        ],
                    }
                ],
                "diffedPlacements": [
                    DEVIATION
                    | {
                        "observationTime": NOW,
                        "firstDiffedObservedTime": NOW,
                        "observedDiffs": [{"path": "/", "valueInHub": "(the whole object)"}],
                    }
                ],
            },
            {"conditions": [CONDITION]},
        ],
    },
    "ClusterSchedulingPolicySnapshot": {
        "observedCRPGeneration": 2,
        "conditions": [CONDITION],
        "targetClusters": [
            {"clusterName": "member-1", "selected": False, "reason": "", "clusterScore": {}}
        ],
    },
    "Work": {
        "conditions": [],
        "manifestConditions": [
            {
                "identifier": {"ordinal": 0, "version": "v1", "kind": "ConfigMap"},
                "conditions": [CONDITION],
                "diffDetails": {"observationTime": NOW, "firstDiffedObservedTime": NOW},
                "backReportedStatus": {
                    "observedStatus": {"apiVersion": "v1", "kind": "Pod", "status": {"a": 1}},
                    "observationTime": NOW,
                },
            }
        ],
    },
    "AppliedWork": {
        "appliedResources": [
            {"ordinal": 0, "version": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}
        ]
    },
    "StagedUpdateRun": {
        "policySnapshotIndexUsed": "0",
        "policyObservedClusterCount": 3,
        "resourceSnapshotIndexUsed": "0",
        "appliedStrategy": APPLY_DEFAULTS,
        "stagedUpdateStrategySnapshot": {
            "stages": [{"name": "all", "labelSelector": {}, "maxConcurrency": 1}]
        },
        "stagesStatus": [
            {
                "stageName": "all",
                "clusters": [],
                "startTime": NOW,
                "beforeStageTaskStatus": [{"type": "Approval", "approvalRequestName": "a"}],
                "afterStageTaskStatus": [{"type": "TimedWait", "conditions": [CONDITION]}],
            }
        ],
        "deletionStageStatus": {
            "stageName": "kubernetes-fleet.io/deleteStage",
            "clusters": [{"clusterName": "member-2", "conditions": [CONDITION]}],
        },
        "conditions": [CONDITION],
    },
}


@pytest.mark.parametrize("kind", STATUSES)
async def test_a_whole_status_is_stored_as_it_is_written(
    server: Client, namespace: str, kind: str
) -> None:
    _, document = sample(kind, namespace)
    resource = BY_NAME[kind].resource
    created = await server.create(resource, document | {"apiVersion": resource.api_version})
    patch = MergePatch({"status": STATUSES[kind]})
    await server.patch(resource, created.name, patch, created.namespace, subresource="status")
    assert (await stored(server, resource, document))["status"] == STATUSES[kind]


async def test_conditions_of_two_writers_are_merged_by_type(server: Client) -> None:
    resource, document = sample("MemberCluster", "")
    created = await server.create(resource, document)
    for writer, type_ in (("hub", "ReadyToJoin"), ("provider", "Joined")):
        identity = {name: document[name] for name in ("apiVersion", "kind")}
        status = {"status": {"conditions": [CONDITION | {"type": type_}]}}
        client = Client(server.transport, field_manager=writer)
        await client.patch(
            resource,
            created.name,
            ApplyPatch(identity | {"metadata": {"name": created.name}} | status),
            subresource="status",
        )
    after = await server.get(resource, created.name)
    assert {each.type for each in after.status.conditions} == {"ReadyToJoin", "Joined"}


# Refusals


def changed(document: Json, path: str, value: object) -> Json:
    """Return a document with a value at a path such as `spec.stages.0.name`; None removes it."""
    result = copy.deepcopy(document)
    *parents, last = path.split(".")
    target: Any = result
    for name in parents:
        target = target[int(name)] if name.isdigit() else target.setdefault(name, {})
    if value is None:
        target.pop(last)
    elif last == "+":
        target.append(value)
    elif last.isdigit():
        target[int(last)] = value
    else:
        target[last] = value
    return result


NAMESPACE = {"group": "", "version": "v1", "kind": "Namespace"}
MODE = "NamespaceWithResourceSelectors"
WITH_SELECTORS = NAMESPACE | {"name": "web", "selectionScope": MODE}
BUDGET = (
    "If supplied value is String should match regex '^(100|[0-9]{1,2})%$' or If supplied value is"
    " Integer must be greater than or equal to 0"
)
FIXED = (
    "affinity, numberOfClusters, topologySpreadConstraints, and tolerations cannot be set when"
    " placementType is PickFixed"
)
ALL = (
    "clusterNames, numberOfClusters, and topologySpreadConstraints cannot be set when"
    " placementType is PickAll"
)
SOME = "clusterNames cannot be set and numberOfClusters must be set when placementType is PickN"
NAMESPACE_ACCESSIBLE = (
    "when statusReportingScope is NamespaceAccessible, exactly one resourceSelector with kind"
    " 'Namespace' is required"
)
MANY_LABELS = [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(101)]
DETAILS = {"version": "v1", "kind": "ConfigMap", "name": "a", "condition": CONDITION}

# kind, path in its sample, value, words of the refusal
REFUSED: tuple[tuple[str, str, object, str], ...] = (
    ("MemberCluster", "metadata.name", "m" * 64, "metadata.name max length is 63"),
    ("MemberCluster", "spec", None, "spec: Required value"),
    ("MemberCluster", "spec.identity", None, "spec.identity: Required value"),
    ("MemberCluster", "spec.identity.kind", None, "spec.identity.kind: Required value"),
    ("MemberCluster", "spec.identity.name", None, "spec.identity.name: Required value"),
    ("MemberCluster", "spec.heartbeatPeriodSeconds", 0, "greater than or equal to 1"),
    ("MemberCluster", "spec.heartbeatPeriodSeconds", 601, "less than or equal to 600"),
    ("MemberCluster", "spec.taints", MANY_LABELS, "must have at most 100 items"),
    ("MemberCluster", "spec.taints.0.effect", "NoExecute", 'supported values: "NoSchedule"'),
    ("MemberCluster", "spec.taints.0.effect", None, "effect: Required value"),
    ("MemberCluster", "spec.taints.0.key", None, "key: Required value"),
    (
        "MemberCluster",
        "spec.deleteOptions.validationMode",
        "Never",
        'supported values: "Strict", "Skip"',
    ),
    ("InternalMemberCluster", "spec.state", "Wait", 'supported values: "Join", "Leave"'),
    ("InternalMemberCluster", "spec.state", None, "spec.state: Required value"),
    ("ClusterProfile", "spec.clusterManager", None, "spec.clusterManager: Required value"),
    # Selectors
    ("ClusterResourcePlacement", "spec.resourceSelectors", [], "should have at least 1 items"),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors",
        [NAMESPACE] * 101,
        "must have at most 100 items",
    ),
    *(
        (
            "ClusterResourcePlacement",
            f"spec.resourceSelectors.0.{field}",
            None,
            f"spec.resourceSelectors[0].{field}: Required value",
        )
        for field in ("group", "version", "kind")
    ),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors.1.name",
        "web",
        "name and labelSelector are mutually exclusive in a resource selector",
    ),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors.0.selectionScope",
        "Everything",
        'supported values: "NamespaceWithResources", "NamespaceOnly", "NamespaceWithResourceSelect',
    ),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors",
        [WITH_SELECTORS, WITH_SELECTORS | {"name": "other"}],
        f"only one namespace selector with {MODE} mode is allowed",
    ),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors",
        [NAMESPACE | {"selectionScope": MODE, "labelSelector": {"matchLabels": {"a": "b"}}}],
        f"namespace selector with {MODE} mode must select by name (not by label)",
    ),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors",
        [NAMESPACE | {"selectionScope": MODE}],
        f"namespace selector with {MODE} mode must select by name (not by label)",
    ),
    (
        "ClusterResourcePlacement",
        "spec.resourceSelectors",
        [WITH_SELECTORS, NAMESPACE | {"name": "other"}],
        f"when using {MODE} mode, only one namespace selector is allowed (cannot mix with other"
        " namespace selectors)",
    ),
    (
        "ClusterResourcePlacement",
        "spec",
        {
            "resourceSelectors": [NAMESPACE, NAMESPACE | {"name": "b"}],
            "statusReportingScope": "NamespaceAccessible",
        },
        NAMESPACE_ACCESSIBLE,
    ),
    (
        "ClusterResourcePlacement",
        "spec",
        {
            "resourceSelectors": [NAMESPACE | {"kind": "Node"}],
            "statusReportingScope": "NamespaceAccessible",
        },
        NAMESPACE_ACCESSIBLE,
    ),
    (
        "ClusterResourcePlacement",
        "spec.statusReportingScope",
        "Everywhere",
        'supported values: "ClusterScopeOnly", "NamespaceAccessible"',
    ),
    ("ClusterResourcePlacement", "spec.revisionHistoryLimit", 0, "greater than or equal to 1"),
    ("ClusterResourcePlacement", "spec.revisionHistoryLimit", 1001, "less than or equal to 1000"),
    # Policies
    (
        "ResourcePlacement",
        "spec.policy.placementType",
        "PickSome",
        'supported values: "PickAll", "PickN", "PickFixed"',
    ),
    *(
        ("ResourcePlacement", "spec.policy", {"placementType": "PickFixed"} | extra, FIXED)
        for extra in (
            {"affinity": {}},
            {"numberOfClusters": 1},
            {"topologySpreadConstraints": [{"topologyKey": "a"}]},
            {"tolerations": [{"key": "a"}]},
        )
    ),
    *(
        ("ResourcePlacement", "spec.policy", {"placementType": "PickAll"} | extra, ALL)
        for extra in (
            {"clusterNames": ["a"]},
            {"numberOfClusters": 0},
            {"topologySpreadConstraints": [{"topologyKey": "a"}]},
        )
    ),
    ("ResourcePlacement", "spec.policy", {"clusterNames": ["a"]}, ALL),
    ("ResourcePlacement", "spec.policy", {"placementType": "PickN"}, SOME),
    (
        "ResourcePlacement",
        "spec.policy",
        {"placementType": "PickN", "numberOfClusters": 1, "clusterNames": ["a"]},
        SOME,
    ),
    ("ClusterResourcePlacement", "spec.policy.numberOfClusters", -1, "greater than or equal to 0"),
    (
        "ResourcePlacement",
        "spec.policy",
        {"placementType": "PickFixed", "clusterNames": [f"m-{n}" for n in range(101)]},
        "must have at most 100 items",
    ),
    *(
        (
            "ClusterResourcePlacement",
            f"spec.policy.affinity.clusterAffinity.{path}",
            value,
            words,
        )
        for path, value, words in (
            (
                "requiredDuringSchedulingIgnoredDuringExecution.clusterSelectorTerms",
                [{}] * 11,
                "must have at most 10 items",
            ),
            (
                "requiredDuringSchedulingIgnoredDuringExecution",
                {},
                "clusterSelectorTerms: Required value",
            ),
            (
                "requiredDuringSchedulingIgnoredDuringExecution.clusterSelectorTerms.0"
                ".propertySelector.matchExpressions.0.operator",
                "Like",
                'supported values: "Gt", "Ge", "Eq", "Ne", "Lt", "Le"',
            ),
            (
                "requiredDuringSchedulingIgnoredDuringExecution.clusterSelectorTerms.0"
                ".propertySelector.matchExpressions.0.values",
                ["1", "2"],
                "must have at most 1 item",
            ),
            (
                "preferredDuringSchedulingIgnoredDuringExecution.0.weight",
                101,
                "less than or equal to 100",
            ),
            (
                "preferredDuringSchedulingIgnoredDuringExecution.0.weight",
                -101,
                "greater than or equal to -100",
            ),
            (
                "preferredDuringSchedulingIgnoredDuringExecution.0.preference",
                None,
                "preference: Required value",
            ),
            (
                "preferredDuringSchedulingIgnoredDuringExecution.0.preference.propertySorter"
                ".sortOrder",
                "Random",
                'supported values: "Ascending", "Descending"',
            ),
        )
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.topologySpreadConstraints.0.maxSkew",
        0,
        "greater than or equal to 1",
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.topologySpreadConstraints.0.topologyKey",
        None,
        "topologyKey: Required value",
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.topologySpreadConstraints.0.whenUnsatisfiable",
        "Wait",
        'supported values: "DoNotSchedule", "ScheduleAnyway"',
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.tolerations.0.operator",
        "Exists",
        "value must be empty when operator is Exists",
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.tolerations.0.key",
        None,
        "operator must be Exists when key is empty",
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.tolerations.0.effect",
        "NoExecute",
        'supported values: "NoSchedule"',
    ),
    (
        "ClusterResourcePlacement",
        "spec.policy.tolerations",
        [{"key": f"k{n}"} for n in range(101)],
        "must have at most 100 items",
    ),
    # Strategies
    (
        "ClusterResourcePlacement",
        "spec.strategy.type",
        "Canary",
        'supported values: "RollingUpdate", "External"',
    ),
    *(
        (
            "ClusterResourcePlacement",
            f"spec.strategy.rollingUpdate.{field}",
            value,
            "should match '^((100|[0-9]{1,2})%|[0-9]+)$'",
        )
        for field in ("maxUnavailable", "maxSurge")
        for value in ("101%", "-1", "a")
    ),
    (
        "ClusterResourcePlacement",
        "spec.strategy.rollingUpdate.unavailablePeriodSeconds",
        -1,
        "greater than or equal to 0",
    ),
    *(
        ("ClusterResourcePlacement", f"spec.strategy.applyStrategy.{field}", "Other", words)
        for field, words in (
            ("type", '"ClientSideApply", "ServerSideApply", "ReportDiff"'),
            ("comparisonOption", '"PartialComparison", "FullComparison"'),
            ("whenToApply", '"Always", "IfNotDrifted"'),
            ("whenToTakeOver", '"Always", "IfNoDiff", "Never"'),
        )
    ),
    (
        "ClusterResourcePlacement",
        "spec.strategy.deleteStrategy.propagationPolicy",
        "Keep",
        '"Delete", "Abandon"',
    ),
    (
        "ClusterResourcePlacement",
        "spec.strategy.reportBackStrategy.destination",
        None,
        "when reportBackStrategy.type is 'Mirror', a destination must be specified",
    ),
    (
        "ClusterResourcePlacement",
        "spec.strategy.reportBackStrategy.destination",
        "Mail",
        '"OriginalResource", "WorkAPI"',
    ),
    # Controllers' own objects
    ("ClusterResourcePlacementStatus", "sourceStatus", None, "sourceStatus: Required value"),
    ("ClusterResourcePlacementStatus", "lastUpdatedTime", None, "lastUpdatedTime: Required value"),
    (
        "ClusterResourcePlacementStatus",
        "sourceStatus.placementStatuses",
        [{"failedPlacements": [DETAILS] * 101}],
        "must have at most 100 items",
    ),
    ("ClusterSchedulingPolicySnapshot", "spec.policyHash", None, "policyHash: Required value"),
    ("ResourceSnapshot", "spec.selectedResources", None, "selectedResources: Required value"),
    (
        "ResourceSnapshot",
        "spec.selectedResources",
        [{"kind": "ConfigMap", "metadata": {}}],
        "apiVersion: Required value",
    ),
    (
        "ClusterResourceBinding",
        "spec.state",
        "Lost",
        'supported values: "Scheduled", "Bound", "Unscheduled"',
    ),
    *(
        ("ResourceBinding", f"spec.{field}", None, f"spec.{field}: Required value")
        for field in (
            "state",
            "targetCluster",
            "resourceSnapshotName",
            "schedulingPolicySnapshotName",
            "clusterDecision",
        )
    ),
    (
        "Work",
        "spec.workload.manifests.0.metadata.labels",
        {"a": "b c"},
        "spec.workload.manifests[0].metadata.labels: Invalid value",
    ),
    ("AppliedWork", "spec.workName", None, "spec.workName: Required value"),
    ("AppliedWork", "spec.workNamespace", None, "spec.workNamespace: Required value"),
    # Overrides
    (
        "ClusterResourceOverride",
        "spec.placement.scope",
        "Namespaced",
        "clusterResourceOverride placement reference cannot be Namespaced scope",
    ),
    ("ClusterResourceOverride", "spec.clusterResourceSelectors", [], "at least 1 items"),
    (
        "ClusterResourceOverride",
        "spec.clusterResourceSelectors",
        [NAMESPACE] * 21,
        "must have at most 20 items",
    ),
    (
        "ResourceOverride",
        "spec.resourceSelectors.0.name",
        None,
        "spec.resourceSelectors[0].name: Required value",
    ),
    ("ResourceOverride", "spec.resourceSelectors", [], "at least 1 items"),
    ("ResourceOverride", "spec.policy.overrideRules", [], "at least 1 items"),
    ("ResourceOverride", "spec.policy.overrideRules", [{}] * 21, "must have at most 20 items"),
    (
        "ResourceOverride",
        "spec.policy.overrideRules.0.overrideType",
        "Merge",
        'supported values: "JSONPatch", "Delete"',
    ),
    (
        "ClusterResourceOverride",
        "spec.policy.overrideRules.0.jsonPatchOverrides.0.op",
        "move",
        'supported values: "add", "remove", "replace"',
    ),
    (
        "ClusterResourceOverride",
        "spec.policy.overrideRules.0.jsonPatchOverrides",
        [{"op": "remove", "path": "/a"}] * 21,
        "must have at most 20 items",
    ),
    (
        "ClusterResourceOverride",
        "spec.policy.overrideRules.0.jsonPatchOverrides",
        [],
        "at least 1 items",
    ),
    ("ResourceOverride", "spec.placement.scope", "Fleet", '"Cluster", "Namespaced"'),
    ("ClusterResourceOverrideSnapshot", "spec.overrideHash", None, "overrideHash: Required value"),
    # Envelopes
    ("ResourceEnvelope", "data", None, "data: Required value"),
    ("ResourceEnvelope", "data", {}, "data: Invalid value: 0: data in body should have at least 1"),
    (
        "ClusterResourceEnvelope",
        "data",
        {f"f{n}": {"apiVersion": "v1", "kind": "Node", "metadata": {}} for n in range(51)},
        "must have at most 50 items",
    ),
    # Evictions
    (
        "ClusterResourcePlacementEviction",
        "spec.placementName",
        "p" * 256,
        "may not be more than 255",
    ),
    ("ClusterResourcePlacementEviction", "spec.clusterName", "p" * 256, "may not be more than 255"),
    (
        "ClusterResourcePlacementEviction",
        "spec.clusterName",
        None,
        "spec.clusterName: Required value",
    ),
    (
        "ClusterResourcePlacementDisruptionBudget",
        "spec.maxUnavailable",
        1,
        "Both MaxUnavailable and MinAvailable cannot be specified",
    ),
    *(
        ("ClusterResourcePlacementDisruptionBudget", "spec", {field: value}, BUDGET)
        for field in ("maxUnavailable", "minAvailable")
        for value in (-1, "101%", "5", "%")
    ),
    # Update runs
    ("ClusterStagedUpdateRun", "metadata.name", "r" * 64, "metadata.name max length is 63"),
    ("StagedUpdateRun", "spec.state", "Pause", 'supported values: "Initialize", "Run", "Stop"'),
    ("StagedUpdateRun", "spec.placementName", "p" * 256, "may not be more than 255"),
    ("StagedUpdateRun", "spec.placementName", None, "spec.placementName: Required value"),
    (
        "StagedUpdateRun",
        "spec.stagedRolloutStrategyName",
        None,
        "spec.stagedRolloutStrategyName: Required value",
    ),
    (
        "StagedUpdateStrategy",
        "spec.stages",
        [{"name": f"s{n}"} for n in range(32)],
        "must have at most 31 items",
    ),
    *(
        ("StagedUpdateStrategy", "spec.stages.0.name", name, "should match '^[a-z0-9]+$'")
        for name in ("", "Canary", "first-stage")
    ),
    ("StagedUpdateStrategy", "spec.stages.0.name", "s" * 64, "may not be more than 63"),
    (
        "StagedUpdateStrategy",
        "spec.stages.0.maxConcurrency",
        0,
        "maxConcurrency must be at least 1",
    ),
    *(
        (
            "StagedUpdateStrategy",
            "spec.stages.0.maxConcurrency",
            value,
            "should match '^(100|[1-9][0-9]?)%$'",
        )
        for value in ("0%", "101%", "3")
    ),
    *(
        ("ClusterStagedUpdateStrategy", f"spec.stages.0.{path}", value, words)
        for path, value, words in (
            (
                "afterStageTasks.1.waitTime",
                "1h",
                "AfterStageTaskType is Approval, waitTime is not allowed",
            ),
            (
                "afterStageTasks.0.waitTime",
                None,
                "AfterStageTaskType is TimedWait, waitTime is required",
            ),
            ("afterStageTasks.0.waitTime", "1d", "should match '^(?:(?:0|[1-9][0-9]*)"),
            ("afterStageTasks.0.waitTime", "01h", "should match '^(?:(?:0|[1-9][0-9]*)"),
            ("afterStageTasks.0.type", "Lunch", 'supported values: "TimedWait", "Approval"'),
            ("afterStageTasks", [{"type": "Approval"}] * 3, "must have at most 2 items"),
            (
                "beforeStageTasks.0.waitTime",
                "1h",
                "AfterStageTaskType is Approval, waitTime is not allowed",
            ),
            (
                "beforeStageTasks",
                [{"type": "TimedWait", "waitTime": "1h"}],
                "BeforeStageTaskType cannot be TimedWait",
            ),
            ("beforeStageTasks", [{"type": "Approval"}] * 2, "must have at most 1 item"),
        )
    ),
    ("ApprovalRequest", "spec.targetStage", None, "spec.targetStage: Required value"),
)


@pytest.mark.parametrize(("kind", "path", "value", "words"), REFUSED)
async def test_a_server_refuses_mistakes_with_the_words_of_the_contract(
    server: Client, namespace: str, kind: str, path: str, value: object, words: str
) -> None:
    _, document = sample(kind, namespace)
    for version in BY_NAME[kind].versions:
        resource = in_version(kind, version)
        if version == "v1" and path.startswith(BETA_FIELDS):
            continue
        given = document | {"apiVersion": resource.api_version}
        await server.create(resource, given, dry_run=True)
        with pytest.raises(Invalid) as refused:
            await server.create(resource, changed(given, path, value), dry_run=True)
        assert words in str(refused.value)


BETA_FIELDS = (
    "spec.deleteOptions",
    "spec.strategy.deleteStrategy",
    "spec.strategy.reportBackStrategy",
)
EXTERNAL = "cannot change rollout strategy type from 'External' to other types"
PLACEMENT = "The placement field is immutable"
TRANSITION = "invalid state transition: cannot transition from"

# kind, created fields (path and value), changed fields, text of the refusal (empty: accepted)
UPDATES: tuple[tuple[str, Json, Json, str], ...] = (
    (
        "ClusterProfile",
        {},
        {"spec": {"clusterManager": {"name": "Other"}}},
        "ClusterManager is immutable",
    ),
    ("ClusterProfile", {}, {"spec": {"displayName": "other"}}, ""),
    (
        "ClusterResourcePlacement",
        {},
        {"spec": {"policy": None}},
        "policy cannot be removed once set",
    ),
    ("ResourcePlacement", {}, {"spec": {"policy": None}}, "policy cannot be removed once set"),
    (
        "ResourcePlacement",
        {},
        {"spec": {"policy": {"placementType": "PickFixed"}}},
        "placement type is immutable",
    ),
    ("ClusterResourcePlacement", {}, {"spec": {"policy": {"numberOfClusters": 0}}}, ""),
    (
        "ClusterResourcePlacement",
        {
            "spec": {
                "resourceSelectors": [NAMESPACE | {"name": "web"}],
                "statusReportingScope": "NamespaceAccessible",
            }
        },
        {"spec": {"statusReportingScope": "ClusterScopeOnly"}},
        "statusReportingScope is immutable",
    ),
    (
        "ClusterResourcePlacement",
        {"spec": {"resourceSelectors": [NAMESPACE | {"name": "web"}]}},
        {"spec": {"statusReportingScope": "NamespaceAccessible"}},
        "statusReportingScope is immutable",
    ),
    ("ResourcePlacement", {}, {"spec": {"strategy": {"type": "RollingUpdate"}}}, EXTERNAL),
    ("ResourcePlacement", {}, {"spec": {"strategy": None}}, EXTERNAL),
    ("ClusterResourcePlacement", {}, {"spec": {"strategy": {"type": "External"}}}, ""),
    ("ClusterResourceOverride", {}, {"spec": {"placement": None}}, PLACEMENT),
    ("ResourceOverride", {}, {"spec": {"placement": {"name": "other"}}}, PLACEMENT),
    (
        "ResourceOverride",
        {"spec": {"placement": None}},
        {"spec": {"placement": {"name": "other"}}},
        PLACEMENT,
    ),
    (
        "ClusterResourcePlacementEviction",
        {},
        {"spec": {"placementName": "other"}},
        "The PlacementName field is immutable",
    ),
    (
        "ClusterResourcePlacementEviction",
        {},
        {"spec": {"clusterName": "other"}},
        "The ClusterName field is immutable",
    ),
    ("StagedUpdateRun", {}, {"spec": {"placementName": "b"}}, "placementName is immutable"),
    (
        "StagedUpdateRun",
        {},
        {"spec": {"resourceSnapshotIndex": "1"}},
        "resourceSnapshotIndex is immutable",
    ),
    (
        "StagedUpdateRun",
        {},
        {"spec": {"resourceSnapshotIndex": None}},
        "resourceSnapshotIndex is immutable",
    ),
    (
        "ClusterStagedUpdateRun",
        {},
        {"spec": {"resourceSnapshotIndex": "1"}},
        "resourceSnapshotIndex is immutable",
    ),
    ("ClusterStagedUpdateRun", {}, {"spec": {"resourceSnapshotIndex": ""}}, ""),
    (
        "StagedUpdateRun",
        {},
        {"spec": {"stagedRolloutStrategyName": "b"}},
        "stagedRolloutStrategyName is immutable",
    ),
    (
        "ClusterStagedUpdateRun",
        {},
        {"spec": {"state": "Stop"}},
        f"{TRANSITION} Initialize to Stop",
    ),
    ("ClusterStagedUpdateRun", {}, {"spec": {"state": "Run"}}, ""),
    ("StagedUpdateRun", {}, {"spec": {"state": "Stop"}}, ""),
    ("StagedUpdateRun", {}, {"spec": {"state": "Initialize"}}, f"{TRANSITION} Run to Initialize"),
    ("StagedUpdateRun", {}, {"spec": {"state": None}}, f"{TRANSITION} Run to Initialize"),
    (
        "StagedUpdateRun",
        {"spec": {"state": "Stop"}},
        {"spec": {"state": "Initialize"}},
        f"{TRANSITION} Stop to Initialize",
    ),
    ("StagedUpdateRun", {"spec": {"state": "Stop"}}, {"spec": {"state": "Run"}}, ""),
    ("ApprovalRequest", {}, {"spec": {"targetStage": "other"}}, "The spec field is immutable"),
    (
        "ClusterApprovalRequest",
        {},
        {"spec": {"parentStageRollout": "other"}},
        "The spec field is immutable",
    ),
)


def merged(document: Any, patch: Any) -> Any:
    """Apply a JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(document, dict):
        return patch
    kept = {name: value for name, value in document.items() if patch.get(name, ...) is not None}
    return kept | {
        name: merged(document.get(name, {}), value)
        for name, value in patch.items()
        if value is not None
    }


@pytest.mark.parametrize(("kind", "before", "change", "words"), UPDATES)
async def test_a_server_refuses_changes_with_the_words_of_the_contract(
    server: Client, namespace: str, kind: str, before: Json, change: Json, words: str
) -> None:
    _, document = sample(kind, namespace)
    resource = BY_NAME[kind].resource
    given = merged(document | {"apiVersion": resource.api_version}, before)
    created = await server.create(resource, given)
    for version in BY_NAME[kind].versions:
        other = in_version(kind, version)
        update = server.patch(
            other, created.name, MergePatch(change), created.namespace, dry_run=True
        )
        if not words:
            await update
            continue
        with pytest.raises(Invalid) as refused:
            await update
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("MemberCluster", "metadata.name", "m" * 63),
        ("ClusterResourcePlacement", "spec.resourceSelectors", [NAMESPACE] * 100),
        (
            "ClusterResourcePlacement",
            "spec.resourceSelectors",
            [WITH_SELECTORS, {"group": "", "version": "v1", "kind": "ConfigMap"}],
        ),
        ("ResourcePlacement", "spec.policy", {"placementType": "PickFixed"}),
        ("ResourcePlacement", "spec.policy", {"placementType": "PickFixed", "clusterNames": []}),
        ("ResourcePlacement", "spec.policy", {"placementType": "PickN", "numberOfClusters": 0}),
        ("ResourcePlacement", "spec.policy", {"tolerations": [{"operator": "Exists"}]}),
        ("ClusterResourcePlacement", "spec.strategy.rollingUpdate.maxSurge", "100%"),
        ("ClusterResourcePlacement", "spec.strategy.rollingUpdate.maxSurge", "7"),
        ("ClusterResourcePlacement", "spec.strategy.rollingUpdate.maxSurge", 0),
        ("ClusterResourceOverride", "spec.clusterResourceSelectors.0.name", None),
        ("ClusterResourceOverride", "spec.policy.overrideRules.0.jsonPatchOverrides.0.path", ""),
        ("ResourceOverride", "spec.policy.overrideRules.0", {"overrideType": "JSONPatch"}),
        ("ClusterResourcePlacementDisruptionBudget", "spec", {}),
        ("ClusterResourcePlacementDisruptionBudget", "spec", {"maxUnavailable": 0}),
        ("ClusterResourcePlacementDisruptionBudget", "spec", {"maxUnavailable": "0%"}),
        ("StagedUpdateStrategy", "spec.stages", []),
        ("StagedUpdateStrategy", "spec.stages.0.maxConcurrency", "1%"),
        ("ClusterStagedUpdateStrategy", "spec.stages.0.afterStageTasks.0.waitTime", "0.5s"),
        ("ClusterStagedUpdateStrategy", "spec.stages.0.afterStageTasks.0.waitTime", "1h0m10s"),
        ("ClusterStagedUpdateRun", "spec.resourceSnapshotIndex", ""),
        ("Work", "spec", {}),
        ("Work", "spec.workload.manifests", []),
    ],
)
async def test_a_server_accepts_what_webhooks_or_controllers_judge(
    server: Client, namespace: str, kind: str, path: str, value: object
) -> None:
    resource, document = sample(kind, namespace)
    await server.create(resource, changed(document, path, value), dry_run=True)


# Stored objects can be read


async def test_nulls_are_dropped_or_defaulted(server: Client, namespace: str) -> None:
    resource, document = sample("ClusterResourcePlacement", namespace)
    given = changed(document, "spec.policy", {})
    given["spec"]["policy"] = {
        "placementType": None,
        "clusterNames": None,
        "affinity": None,
        "tolerations": None,
    }
    given["spec"]["strategy"] = None
    given["spec"]["revisionHistoryLimit"] = None
    created = await server.create(resource, given)
    spec = (await stored(server, resource, document))["spec"]
    assert spec["policy"] == {"placementType": "PickAll"}
    assert "strategy" not in spec
    assert spec["revisionHistoryLimit"] == 10
    assert created.spec.policy.placement_type == "PickAll"


@pytest.mark.parametrize("number", [2.0, 2**63 - 1, 2**64, 1e20, 1e21, 1e300, -1e21, 0.5])
async def test_numbers_that_a_server_stores_are_read(server: Client, number: float) -> None:
    resource, document = sample("MemberCluster", "")
    created = await server.create(resource, document)
    status = {"agentStatus": [], "conditions": [CONDITION | {"observedGeneration": number}]}
    write = server.patch(
        resource, created.name, MergePatch({"status": status}), subresource="status"
    )
    with contextlib.suppress(Invalid, BadRequest):
        await write
    read = await server.get(resource, created.name)
    assert [each.observed_generation for each in read.status.conditions] in ([], [number])


# Tables


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (
            "MemberCluster",
            [
                "Joined",
                "Age",
                "Member-Agent-Last-Seen",
                "Node-Count",
                "Available-CPU",
                "Available-Memory",
            ],
        ),
        (
            "ClusterResourcePlacement",
            ["Gen", "Scheduled", "Scheduled-Gen", "Available", "Available-Gen", "Age"],
        ),
        (
            "ResourcePlacement",
            ["Gen", "Scheduled", "Scheduled-Gen", "Available", "Available-Gen", "Age"],
        ),
        ("ClusterResourceBinding", ["WorkSynchronized", "ResourcesApplied", "Age"]),
        ("ClusterResourcePlacementStatus", ["Resource-Index", "Last-Updated", "Age"]),
        (
            "ClusterStagedUpdateRun",
            [
                "Placement",
                "Resource-Snapshot-Index",
                "Policy-Snapshot-Index",
                "Initialized",
                "Progressing",
                "Succeeded",
                "Age",
            ],
        ),
        ("ApprovalRequest", ["Update-Run", "Stage", "Approved", "Age"]),
        ("Work", ["Age"]),
    ],
)
async def test_tables_have_the_columns_of_the_contract(
    server: Client, namespace: str, kind: str, columns: list[str]
) -> None:
    for version in BY_NAME[kind].versions:
        path = in_version(kind, version).path(namespace)
        table = await server.request_json(
            "GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io"
        )
        shown = [each["name"] for each in table["columnDefinitions"] if not each["priority"]]
        assert shown == ["Name", *columns]


async def test_a_table_shows_a_member(server: Client) -> None:
    resource, document = sample("MemberCluster", "")
    created = await server.create(resource, document)
    joined = CONDITION | {"type": "Joined"}
    status = STATUSES["MemberCluster"] | {"conditions": [joined]}
    await server.patch(resource, created.name, MergePatch({"status": status}), subresource="status")
    table = await server.request_json(
        "GET",
        resource.path(name=created.name),
        accept="application/json;as=Table;v=v1;g=meta.k8s.io",
    )
    names = [each["name"] for each in table["columnDefinitions"]]
    row = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert (row["Joined"], row["Node-Count"], row["Available-CPU"]) == ("True", "3", "500m")
    assert row["Allocatable-CPU"] == "4"
