"""Properties of the forge that hold for every valid pod."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.changes import changes
from kubeocean.syncer.pods.env import redirected_fields
from kubeocean.syncer.pods.forge import forge
from kubeocean.syncer.pods.forge_context import Context, Refused, ServiceEnv, ServicePort
from kubeocean.syncer.pods.referenced_objects import references
from support.forge_inputs import context_for
from support.pod_strategies import pods

SERVICES = (ServiceEnv("db", "10.0.0.5", (ServicePort(5432, "sql"),)),)
# Pods are large; generating one takes longer than forging it.
thorough = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def around(pod: Json) -> Context:
    return context_for(pod, services=SERVICES)


def forged(pod: Json) -> Json | None:
    """Return the physical pod; None if it is refused with a reason."""
    try:
        return forge(pod, around(pod))
    except Refused as refused:
        assert refused.field
        assert refused.reason
        return None


def nested(value: Any, key: str) -> Iterator[Any]:
    """Yield all values of a key, at any depth."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == key:
                yield each
            yield from nested(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from nested(each, key)


@thorough
@given(pod=pods())
def test_the_same_pod_is_always_forged_alike_and_never_changed(pod: Json) -> None:
    before = copy.deepcopy(pod)
    first = forged(pod)
    assert pod == before
    assert forged(copy.deepcopy(pod)) == first


@thorough
@given(pod=pods())
def test_a_pod_that_was_just_forged_needs_no_change(pod: Json) -> None:
    physical = forged(pod)
    if physical is not None:
        physical["metadata"] |= {"uid": "p", "resourceVersion": "1"}
        difference = changes(pod, physical, around(pod))
        assert difference.patches == ()
        assert difference.refused == ()


@thorough
@given(pod=pods())
def test_our_annotations_of_the_virtual_pod_cause_no_change_of_the_physical_pod(pod: Json) -> None:
    physical = forged(pod)
    mapped = copy.deepcopy(pod)
    mapped["metadata"]["annotations"] = (mapped["metadata"].get("annotations") or {}) | {
        DEFAULT.physical_pod_namespace: "n",
        DEFAULT.physical_pod_name: "p",
        DEFAULT.physical_pod_uid: "u",
        DEFAULT.last_sync_time: "now",
    }
    assert forged(mapped) == physical


@thorough
@given(pod=pods())
def test_the_workers_service_account_is_never_used(pod: Json) -> None:
    physical = forged(pod)
    if physical is not None:
        spec = physical["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not {"serviceAccountName", "serviceAccount"} & spec.keys()
        for key in ("serviceAccountToken", "podCertificate", "clusterTrustBundle"):
            assert not [*nested(spec, key)]


@thorough
@given(pod=pods())
def test_every_name_is_that_of_a_copy(pod: Json) -> None:
    physical = forged(pod)
    if physical is not None:
        names, refs = around(pod).names, references(physical)
        pulled = {names.secrets[name] for name in references(pod).pull_secrets}
        assert {*refs.config_maps} == {*names.config_maps.values()}
        copies = {*names.secrets.values()}
        assert copies <= {*refs.secrets} | pulled
        assert {*refs.secrets} <= copies | {*names.tokens.values()}
        assert {*refs.pull_secrets} == pulled
        assert {*refs.claims} == {*names.claims.values()}
        assert refs.ephemeral_claims == ()
        assert refs.tokens == ()


@thorough
@given(pod=pods())
def test_a_required_reference_stays_required(pod: Json) -> None:
    physical = forged(pod)
    if physical is not None:
        names, required, refs = around(pod).names, references(pod), references(physical)
        for name, optional in required.config_maps.items():
            assert refs.config_maps[names.config_maps[name]] == optional
        for name, optional in required.secrets.items():
            assert refs.secrets[names.secrets[name]] == optional


@thorough
@given(pod=pods())
def test_no_field_of_the_downward_api_has_the_physical_pods_identity(pod: Json) -> None:
    physical = forged(pod)
    if physical is not None:
        paths = {*nested(physical["spec"], "fieldPath")}
        assert not paths & redirected_fields(DEFAULT).keys()
        answered = {f"metadata.annotations['{key}']" for key in physical["metadata"]["annotations"]}
        ours = {path for path in paths if DEFAULT.name in path}
        assert ours <= answered


@thorough
@given(pod=pods())
def test_containers_see_the_environment_that_a_kubelet_of_the_computing_cluster_sets(
    pod: Json,
) -> None:
    physical = forged(pod)
    if physical is not None:
        for kind in ("containers", "initContainers"):
            virtual = pod["spec"].get(kind) or []
            for container, given_env in zip(physical["spec"].get(kind) or [], virtual, strict=True):
                env = {v["name"]: v for v in container["env"]}
                assert env["KUBERNETES_SERVICE_HOST"]["value"] == "10.9.8.7"
                assert env["HOSTNAME"]["value"] == pod["metadata"]["name"]
                own = [v["name"] for v in given_env.get("env") or ()]
                if "DB_SERVICE_PORT" not in own:
                    links = pod["spec"].get("enableServiceLinks") is not False
                    assert ("DB_SERVICE_PORT" in env) == links
                order = [v["name"] for v in container["env"][-len(own) - 1 :]]
                kept = [name for name in own if name != "KUBERNETES_SERVICE_HOST"]
                assert [name for name in order if name in kept][-len(kept) or len(order) :] == kept


@thorough
@given(pod=pods(), direct=st.booleans())
def test_a_pod_has_one_node_and_no_constraint_against_it(pod: Json, direct: bool) -> None:
    try:
        spec = forge(pod, context_for(pod, direct_scheduling=direct))["spec"]
    except Refused:
        return
    assert spec.get("nodeName") == ("n1" if direct else None)
    assert ("affinity" in spec) != direct
    away = {"nodeSelector", "schedulerName", "schedulingGates", "topologySpreadConstraints"}
    assert not (away | {"priority", "preemptionPolicy", "overhead"}) & spec.keys()
