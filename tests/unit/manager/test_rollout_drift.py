"""Tests of the comparison of objects, and of the transfer of fields to our field manager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.manager.rollout_drift import (
    drift,
    fingerprint,
    keep_replicas,
    keep_selector,
    transfer_fields,
)
from kubeocean.runtime.objects import Json

CONTAINER: Json = {
    "name": "syncer",
    "image": "i:1",
    "args": ["syncer", "--a=b"],
    "env": [{"name": "A", "value": "1"}],
    "ports": [{"containerPort": 80, "name": "web"}],
    "resources": {"requests": {"cpu": "0.5", "memory": "512Mi"}},
}
WANTED: Json = {
    "kind": "Deployment",
    "metadata": {"name": "d", "labels": {"a": "b"}, "ownerReferences": [{"uid": "u1"}]},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [CONTAINER], "tolerations": [{"key": "x"}], "volumes": []},
        },
    },
}


def live() -> Json:
    """Return an object as an API server returns it: with defaults, normalised values and additions
    of others."""
    stored = copy.deepcopy(WANTED)
    stored["metadata"] |= {"uid": "d1", "resourceVersion": "7", "generation": 1}
    stored["metadata"]["labels"]["other"] = "x"
    stored["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    stored["metadata"]["ownerReferences"].append({"uid": "u2"})
    spec = stored["spec"]["template"]["spec"]
    del spec["volumes"]
    spec["dnsPolicy"] = "ClusterFirst"
    container = spec["containers"][0]
    container["resources"] = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    container["ports"][0]["protocol"] = "TCP"
    container["env"].insert(0, {"name": "B", "value": "2"})
    spec["containers"].insert(0, {"name": "sidecar", "image": "s"})
    stored["status"] = {"replicas": 2}
    del stored["kind"]  # as in a list
    return stored


def test_defaults_equal_quantities_and_fields_of_others_are_no_drift() -> None:
    assert drift(WANTED, live()) == ()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "replicas"), 0, ".spec.replicas"),
        (("metadata", "labels", "a"), "c", ".metadata.labels.a"),
        (("metadata", "ownerReferences"), [{"uid": "u2"}], ".metadata.ownerReferences[u1]"),
        (
            ("spec", "template", "spec", "containers", 1, "args"),
            ["syncer"],
            ".spec.template.spec.containers[syncer].args",
        ),
        (
            ("spec", "template", "spec", "containers", 1, "args", 1),
            "--a=c",
            ".spec.template.spec.containers[syncer].args[1]",
        ),
        (
            ("spec", "template", "spec", "containers", 1, "env", 1, "value"),
            "2",
            ".spec.template.spec.containers[syncer].env[A].value",
        ),
        (
            ("spec", "template", "spec", "containers", 1, "ports"),
            [{"containerPort": 80, "protocol": "UDP"}],
            ".spec.template.spec.containers[syncer].ports[80,TCP]",
        ),
        (
            ("spec", "template", "spec", "containers", 1, "resources", "requests", "cpu"),
            "501m",
            ".spec.template.spec.containers[syncer].resources.requests.cpu",
        ),
        (("spec", "template", "spec", "containers"), [], ".spec.template.spec.containers[syncer]"),
        (
            ("spec", "template", "spec", "tolerations"),
            [{"key": "x"}, {"operator": "Exists"}],
            ".spec.template.spec.tolerations",
        ),
        (("spec", "template", "spec"), None, ".spec.template.spec"),
    ],
)
def test_fields_of_the_template_that_differ_are_named(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    stored = live()
    at: Any = stored
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert drift(WANTED, stored) == (message,)


def test_ports_of_a_service_are_merged_and_those_of_a_network_policy_are_not() -> None:
    one, other = {"port": 80}, {"port": 81, "protocol": "TCP"}
    assert drift({"spec": {"ports": [one]}}, {"spec": {"ports": [other, one]}}) == ()
    wanted = {"spec": {"ingress": [{"ports": [one]}]}}
    stored = {"spec": {"ingress": [{"ports": [one, other]}]}}
    assert drift(wanted, stored) == (".spec.ingress[0].ports",)


def test_empty_values_may_be_absent() -> None:
    assert drift({"a": "", "b": False, "c": 0, "d": [], "e": {}}, {}) == ()
    assert drift({"a": "0", "b": True, "c": 1, "d": [0], "e": {"x": 1}}, {}) != ()
    assert drift({"a": True}, {"a": 1}) == (".a",)


_json = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


_fields = st.one_of(st.text(max_size=3), st.sampled_from(["env", "ports", "limits"]))


@given(st.dictionaries(_fields, _json, max_size=4))
def test_an_object_does_not_drift_from_itself(body: Json) -> None:
    assert drift(body, copy.deepcopy(body)) == ()


@given(
    st.dictionaries(st.sampled_from("abc"), _json, max_size=3),
    st.dictionaries(st.sampled_from("xyz"), _json, max_size=3),
)
def test_fields_that_others_add_are_no_drift(ours: Json, others: Json) -> None:
    assert drift(ours, others | ours) == ()


# Fingerprints


def test_a_fingerprint_does_not_depend_on_status_and_volatile_metadata() -> None:
    one, with_status, edited = live(), live(), live()
    with_status["status"] = {"replicas": 1}
    with_status["metadata"] |= {"resourceVersion": "8", "managedFields": [{}]}
    edited["metadata"]["labels"]["new"] = "x"
    assert fingerprint(one) == fingerprint(with_status)
    assert fingerprint(one) != fingerprint(edited)


# Selectors


def test_the_stored_selector_is_kept_and_pods_match_it() -> None:
    stored = live()
    stored["spec"]["selector"] = {"matchLabels": {"a": "b", "k8s-app": "d"}}
    body = keep_selector(WANTED, stored)
    assert body["spec"]["selector"] == stored["spec"]["selector"]
    assert body["spec"]["template"]["metadata"]["labels"] == {"a": "b", "k8s-app": "d"}
    assert WANTED["spec"]["template"]["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    "selector",
    [{"matchLabels": {"a": "other"}}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
)
def test_a_selector_that_the_pods_cannot_match_is_reported(selector: Json) -> None:
    stored = live()
    stored["spec"]["selector"] = selector
    with pytest.raises(ConfigError, match="cannot change"):
        keep_selector(WANTED, stored)


def test_objects_of_other_kinds_are_returned_unchanged() -> None:
    service = {"kind": "Service", "spec": {"selector": {"a": "b"}}}
    assert keep_selector(service, {"spec": {"selector": {"c": "d"}}}) is service


# Hand-over


def entry(manager: str, operation: str, fields: Json, **more: str) -> Json:
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "apps/v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    } | more


def test_fields_that_others_updated_are_transferred() -> None:
    status = entry("kube-controller-manager", "Update", {"f:status": {}}, subresource="status")
    entries = [
        entry("go", "Update", {"f:spec": {"f:replicas": {}, "f:x": {".": {}}}}),
        entry("kubectl-edit", "Update", {"f:spec": {"f:x": {"f:y": {}}}}),
        status,
        entry("helm", "Apply", {"f:metadata": {}}),
    ]
    transferred = transfer_fields({"metadata": {"managedFields": entries}}, "us")
    assert transferred == [
        status,
        entries[3],
        entry("us", "Apply", {"f:spec": {"f:replicas": {}, "f:x": {".": {}, "f:y": {}}}}),
    ]


def test_an_interrupted_transfer_of_fields_is_completed() -> None:
    entries = [
        entry("us", "Apply", {"f:spec": {"f:replicas": {}}}),
        entry("kubectl-edit", "Update", {"f:spec": {"f:x": {}}}),
    ]
    transferred = transfer_fields({"metadata": {"managedFields": entries}}, "us")
    assert transferred == [entry("us", "Apply", {"f:spec": {"f:replicas": {}, "f:x": {}}})]
    assert transfer_fields({"metadata": {"managedFields": transferred}}, "us") is None
    assert transfer_fields({"metadata": {}}, "us") is None


@pytest.mark.parametrize(("stored", "kept"), [(2, 2), (4, 4), (5, 5), (0, 2), (1, 2), (6, 2)])
def test_replicas_within_the_bounds_of_an_autoscaler_are_kept(stored: int, kept: int) -> None:
    desired = {"spec": {"replicas": 2, "paused": False}}
    body = keep_replicas(desired, {"spec": {"replicas": stored}}, (2, 5))
    assert body == {"spec": {"replicas": kept, "paused": False}}
    assert desired["spec"]["replicas"] == 2
