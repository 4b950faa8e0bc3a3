"""Selection: objects that are never placed, fields that are removed, order and parts."""

from __future__ import annotations

import copy
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.api.fleet.hashes import canonical
from kubeocean.api.fleet.limits import SNAPSHOT_BYTES
from kubeocean.errors import ConfigError
from kubeocean.fleet.selection.cleaning import clean
from kubeocean.fleet.selection.order import KINDS, in_order, rank, split
from kubeocean.fleet.selection.rules import ApiFilter, NamespaceFilter, is_placeable
from kubeocean.runtime.objects import GroupVersionKind, Json, Key
from support.fleet_manifests import manifests

# --- rules


@pytest.mark.parametrize(
    ("namespace", "allowed"),
    [
        ("web", True),
        ("kubernetes", True),
        ("default", False),
        ("kube-system", False),
        ("kube-anything", False),
        ("fleet-system", False),
        ("fleet-member-east", False),
        ("skipped", False),
    ],
)
def test_namespaces(namespace: str, allowed: bool) -> None:
    assert NamespaceFilter(frozenset({"skipped"})).allows(namespace) is allowed


PLACEMENT = "placement.kubernetes-fleet.io"


@pytest.mark.parametrize(
    ("group", "kind", "allowed"),
    [
        ("", "ConfigMap", True),
        ("", "Pod", False),
        ("", "Node", False),
        ("", "Event", False),
        ("events.k8s.io", "Event", False),
        ("coordination.k8s.io", "Lease", False),
        ("metrics.k8s.io", "PodMetrics", False),
        ("example.com", "Pod", True),
        ("cluster.kubernetes-fleet.io", "MemberCluster", False),
        (PLACEMENT, "ClusterResourcePlacement", False),
        (PLACEMENT, "Work", False),
        (PLACEMENT, "ClusterResourceEnvelope", True),
        (PLACEMENT, "ResourceEnvelope", True),
        ("networking.fleet.azure.com", "InternalServiceExport", False),
    ],
)
def test_kinds(group: str, kind: str, allowed: bool) -> None:
    assert ApiFilter().allows(GroupVersionKind(group, "v1", kind)) is allowed
    listed = ApiFilter.parse(allowed=f"{group}/v1/{kind}" if group else f"v1/{kind}")
    assert listed.allows(GroupVersionKind(group, "v1", kind)) is allowed, "no list allows these"


@pytest.mark.parametrize(
    ("setting", "matched", "others"),
    [
        ("apps", [("apps", "v1", "Deployment")], [("", "v1", "Secret")]),
        ("apps/v1beta1", [("apps", "v1beta1", "X")], [("apps", "v1", "X")]),
        ("apps/Deployment", [("apps", "v9", "Deployment")], [("apps", "v1", "StatefulSet")]),
        (
            "v1/Secret,ConfigMap",
            [("", "v1", "Secret"), ("", "v1", "ConfigMap")],
            [("", "v1", "Service"), ("apps", "v1", "Secret")],
        ),
        (
            "batch/v1/Job,CronJob; apps",
            [("batch", "v1", "Job"), ("batch", "v1", "CronJob"), ("apps", "v1", "X")],
            [("batch", "v1beta1", "Job")],
        ),
    ],
)
def test_settings_skip_or_allow_kinds(
    setting: str, matched: list[tuple[str, str, str]], others: list[tuple[str, str, str]]
) -> None:
    skipped, allowed = ApiFilter.parse(skipped=setting), ApiFilter.parse(allowed=setting)
    for kinds, is_matched in ((matched, True), (others, False)):
        for kind in kinds:
            assert skipped.allows(GroupVersionKind(*kind)) is not is_matched
            assert allowed.allows(GroupVersionKind(*kind)) is is_matched


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="GROUP"):
        ApiFilter.parse(skipped="a/b/c/d")
    with pytest.raises(ConfigError, match="one of the two"):
        ApiFilter.parse(skipped="a", allowed="b")
    assert ApiFilter.parse(skipped=" ; ") == ApiFilter()


def obj(api_version: str, kind: str, name: str = "a", **more: Any) -> Json:
    metadata = {"name": name, "namespace": "web", **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


OWNED = {"ownerReferences": [{"kind": "Deployment"}]}
SLICE_LABELS = {"labels": {"endpointslice.kubernetes.io/managed-by": "controller"}}


@pytest.mark.parametrize(
    ("subject", "placed"),
    [
        (obj("v1", "ConfigMap"), True),
        (obj("v1", "ConfigMap", metadata={"deletionTimestamp": "t"}), False),
        (obj("v1", "ConfigMap", metadata=OWNED), True),
        (obj("v1", "ConfigMap", "kube-root-ca.crt"), False),
        (obj("v1", "ServiceAccount", "default"), False),
        (obj("v1", "ServiceAccount"), True),
        (obj("v1", "Secret", type="kubernetes.io/service-account-token"), False),
        (obj("v1", "Secret", type="Opaque"), True),
        (obj("apps/v1", "ReplicaSet", metadata=OWNED), False),
        (obj("apps/v1", "ReplicaSet"), True),
        (obj("apps/v1", "ControllerRevision", metadata=OWNED), False),
        (obj("v1", "Endpoints", "served"), False),
        (obj("v1", "Endpoints", "by-hand"), True),
        (obj("discovery.k8s.io/v1", "EndpointSlice", metadata=SLICE_LABELS), False),
        (obj("discovery.k8s.io/v1", "EndpointSlice"), True),
        (obj("v1", "PersistentVolumeClaim"), True),
        (obj("example.com/v1", "ConfigMap", "kube-root-ca.crt"), True),
    ],
)
def test_objects(subject: Json, placed: bool) -> None:
    services = {Key("web", "served"), Key("other", "by-hand")}
    assert is_placeable(subject, hub_runs_workloads=False, services=services) is placed


def test_claims_of_a_hub_with_workloads_are_not_placed() -> None:
    claim = obj("v1", "PersistentVolumeClaim")
    assert not is_placeable(claim, hub_runs_workloads=True, services=())


# --- cleaning


def test_what_the_hub_set_is_removed() -> None:
    kept = {"labels": {"a": "b"}, "finalizers": ["example.com/keep"]}
    hub = {
        "uid": "u",
        "resourceVersion": "1",
        "generation": 3,
        "creationTimestamp": "t",
        "managedFields": [],
        "ownerReferences": [{}],
        "selfLink": "/x",
    }
    annotations = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "deployment.kubernetes.io/revision": "4",
    }
    subject = obj("apps/v1", "Deployment", metadata={**hub, **kept}, spec={}, status={"x": 1})
    assert clean(subject) == obj("apps/v1", "Deployment", metadata=kept, spec={})
    subject["metadata"]["annotations"] = annotations
    assert clean(subject) == obj("apps/v1", "Deployment", metadata=kept, spec={})
    subject["metadata"]["annotations"] = {**annotations, "mine": "x"}
    assert clean(subject)["metadata"]["annotations"] == {"mine": "x"}


def test_a_service_loses_its_addresses_unless_it_is_headless() -> None:
    def service(**spec: Any) -> Json:
        cleaned: Json = clean(obj("v1", "Service", spec=spec))["spec"]
        return cleaned

    ports = [{"port": 80, "nodePort": 30080}]
    spec = {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "healthCheckNodePort": 30001}
    assert service(**spec, ports=ports) == {"ports": [{"port": 80}]}
    headless = {"clusterIP": "None", "clusterIPs": ["None"]}
    assert service(**headless) == headless
    assert ports == [{"port": 80, "nodePort": 30080}], "the object itself is left alone"


def test_a_job_loses_the_labels_that_find_its_pods() -> None:
    labels = {
        "controller-uid": "u",
        "batch.kubernetes.io/controller-uid": "u",
        "job-name": "a",
        "batch.kubernetes.io/job-name": "a",
    }
    kept = {"job-name": "a", "batch.kubernetes.io/job-name": "a"}

    def spec(labels: Json, **more: Any) -> Json:
        template = {"metadata": {"labels": labels}, "spec": {}}
        return {"selector": {"matchLabels": labels}, "template": template, **more}

    for manual in (None, False):
        more = {} if manual is None else {"manualSelector": manual}
        subject = obj("batch/v1", "Job", spec=spec(dict(labels), **more))
        assert clean(subject)["spec"] == spec(kept, **more)
    by_hand = obj("batch/v1", "Job", spec=spec(labels, manualSelector=True))
    assert clean(by_hand) == by_hand


@given(manifests())
def test_cleaning_again_changes_nothing(case: tuple[Json, Json, Json]) -> None:
    subject = {**case[0], "status": {"x": 1}}
    before = copy.deepcopy(subject)
    cleaned = clean(subject)
    assert clean(cleaned) == cleaned
    assert subject == before


@pytest.mark.parametrize("spec", [None, [], "x", {"ports": 3}, {"selector": []}])
def test_objects_of_any_form_can_be_cleaned(spec: Any) -> None:
    for api_version, kind in (("v1", "Service"), ("batch/v1", "Job")):
        subject = obj(api_version, kind, spec=spec)
        assert clean(subject) == subject


# --- order


ORDER = """
PriorityClass Namespace NetworkPolicy ResourceQuota LimitRange PodDisruptionBudget ServiceAccount
Secret ConfigMap StorageClass PersistentVolume PersistentVolumeClaim CustomResourceDefinition
ClusterRole ClusterRoleBinding Role RoleBinding Service DaemonSet Pod ReplicationController
ReplicaSet Deployment HorizontalPodAutoscaler StatefulSet Job CronJob IngressClass Ingress
APIService MutatingWebhookConfiguration ValidatingWebhookConfiguration
"""


def test_the_order_of_kinds() -> None:
    assert tuple(ORDER.split()) == KINDS


def test_objects_of_one_kind_and_of_unknown_kinds() -> None:
    ordered = [
        obj("v1", "Namespace", "z"),
        obj("v1", "ConfigMap", "b"),
        obj("v1", "ConfigMap", "a", metadata={"namespace": "zoo"}),
        obj("serving.knative.dev/v1", "Service"),
        obj("v1", "Service"),
        obj("apps/v1", "Deployment"),
        obj("v1", "Endpoints"),
        obj("a.example.com/v1", "Zebra"),
        obj("b.example.com/v1", "Ant", "a"),
        obj("b.example.com/v1", "Ant", "b"),
        obj("b.example.com/v1", "Bee"),
    ]
    shuffled = random.Random(1).sample(ordered, len(ordered))
    assert in_order(shuffled) == ordered


NAMES = st.sampled_from(("a", "b", "a-b", ""))
IDENTITIES = st.tuples(
    st.builds(
        GroupVersionKind,
        st.sampled_from(("", "apps", "example.com")),
        st.sampled_from(("v1", "v2")),
        st.sampled_from((*KINDS, "Widget", "Gadget")),
    ),
    NAMES,
    NAMES,
)


@given(st.lists(IDENTITIES, unique=True), st.randoms())
def test_the_order_is_total_and_does_not_depend_on_the_input(
    identities: list[tuple[GroupVersionKind, str, str]], random: random.Random
) -> None:
    assert len({rank(*identity) for identity in identities}) == len(identities)
    shuffled = random.sample(identities, len(identities))
    by_rank = {each: rank(*each) for each in identities}
    assert sorted(shuffled, key=by_rank.__getitem__) == sorted(identities, key=by_rank.__getitem__)


# --- split


def test_parts_are_filled_to_the_last_byte() -> None:
    half = SNAPSHOT_BYTES // 2
    assert split([half, half], int) == ((half, half),)
    assert split([half, half + 1], int) == ((half,), (half + 1,))
    large = SNAPSHOT_BYTES + 1
    assert split([1, large, 1, 1], int) == ((1,), (large,), (1, 1))
    assert split([], int) == ((),)


@given(st.lists(st.integers(0, 20)), st.integers(1, 30))
def test_splitting_keeps_the_bound_and_loses_nothing(sizes: list[int], limit: int) -> None:
    parts = split(sizes, int, limit)
    assert [size for part in parts for size in part] == sizes
    assert all(sum(part) <= limit or len(part) == 1 for part in parts)
    assert all(parts) or parts == ((),)
    for part, following in pairwise(parts):
        assert sum(part) + following[0] > limit, "the next object would have fitted"


@given(st.lists(manifests(), min_size=1, max_size=4))
def test_a_part_as_json_is_as_long_as_its_objects(cases: list[tuple[Json, Json, Json]]) -> None:
    texts = [canonical(each) for case in cases for each in case]
    longest = max(map(len, texts))
    parts = split(texts, len, longest)
    assert b"".join(b"".join(part) for part in parts) == b"".join(texts)
    assert all(len(b"".join(part)) <= longest for part in parts)
