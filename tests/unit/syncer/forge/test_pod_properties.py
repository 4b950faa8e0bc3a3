"""Whatever a pod is like: what must be true of what is made of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forging import context_for
from kubeocean.api.group import DEFAULT
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.downward import answers
from kubeocean.syncer.forge.podchanges import changes
from kubeocean.syncer.forge.podcontext import Context, Refused, ServiceEnv, ServicePort
from kubeocean.syncer.forge.pods import forge
from kubeocean.syncer.forge.references import references
from virtualpods import pods

SERVICES = (ServiceEnv("db", "10.0.0.5", (ServicePort(5432, "sql"),)),)
# Pods are large; drawing one takes longer than forging it.
thorough = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def around(pod: Json) -> Context:
    return context_for(pod, services=SERVICES)


def forged(pod: Json) -> Json | None:
    """None if it is refused, which says why."""
    try:
        return forge(pod, around(pod))
    except Refused as refused:
        assert refused.field
        assert refused.reason
        return None


def nested(value: Any, key: str) -> Iterator[Any]:
    """All values of a key, however deep."""
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
    below = forged(pod)
    if below is not None:
        below["metadata"] |= {"uid": "p", "resourceVersion": "1"}
        found = changes(pod, below, around(pod))
        assert found.patches == ()
        assert found.refused == ()


@thorough
@given(pod=pods())
def test_what_we_write_above_changes_nothing_below(pod: Json) -> None:
    below = forged(pod)
    mapped = copy.deepcopy(pod)
    mapped["metadata"]["annotations"] = (mapped["metadata"].get("annotations") or {}) | {
        DEFAULT.physical_pod_namespace: "n",
        DEFAULT.physical_pod_name: "p",
        DEFAULT.physical_pod_uid: "u",
        DEFAULT.last_sync_time: "now",
    }
    assert forged(mapped) == below


@thorough
@given(pod=pods())
def test_the_workers_account_is_never_used(pod: Json) -> None:
    below = forged(pod)
    if below is not None:
        spec = below["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not {"serviceAccountName", "serviceAccount"} & spec.keys()
        for key in ("serviceAccountToken", "podCertificate", "clusterTrustBundle"):
            assert not [*nested(spec, key)]


@thorough
@given(pod=pods())
def test_every_name_is_that_of_a_copy(pod: Json) -> None:
    below = forged(pod)
    if below is not None:
        names, found = around(pod).names, references(below)
        pulled = {names.secrets[name] for name in references(pod).pull_secrets}
        assert {*found.config_maps} == {*names.config_maps.values()}
        copies = {*names.secrets.values()}
        assert copies <= {*found.secrets} | pulled
        assert {*found.secrets} <= copies | {*names.tokens.values()}
        assert {*found.pull_secrets} == pulled
        assert {*found.claims} == {*names.claims.values()}
        assert found.ephemeral_claims == ()
        assert found.tokens == ()


@thorough
@given(pod=pods())
def test_what_is_required_above_is_required_below(pod: Json) -> None:
    below = forged(pod)
    if below is not None:
        names, wanted, found = around(pod).names, references(pod), references(below)
        for name, optional in wanted.config_maps.items():
            assert found.config_maps[names.config_maps[name]] == optional
        for name, optional in wanted.secrets.items():
            assert found.secrets[names.secrets[name]] == optional


@thorough
@given(pod=pods())
def test_no_question_is_asked_that_the_worker_would_answer_for_itself(pod: Json) -> None:
    below = forged(pod)
    if below is not None:
        asked = {*nested(below["spec"], "fieldPath")}
        assert not asked & answers(DEFAULT).keys()
        answered = {f"metadata.annotations['{key}']" for key in below["metadata"]["annotations"]}
        ours = {path for path in asked if DEFAULT.name in path}
        assert ours <= answered


@thorough
@given(pod=pods())
def test_containers_see_what_a_kubelet_above_would_show(pod: Json) -> None:
    below = forged(pod)
    if below is not None:
        for kind in ("containers", "initContainers"):
            above = pod["spec"].get(kind) or []
            for container, given_env in zip(below["spec"].get(kind) or [], above, strict=True):
                env = {v["name"]: v for v in container["env"]}
                assert env["KUBERNETES_SERVICE_HOST"]["value"] == "10.9.8.7"
                assert env["HOSTNAME"]["value"] == pod["metadata"]["name"]
                own = [v["name"] for v in given_env.get("env") or ()]
                if "DB_SERVICE_PORT" not in own:
                    told = pod["spec"].get("enableServiceLinks") is not False
                    assert ("DB_SERVICE_PORT" in env) == told
                order = [v["name"] for v in container["env"][-len(own) - 1 :]]
                kept = [name for name in own if name != "KUBERNETES_SERVICE_HOST"]
                assert [name for name in order if name in kept][-len(kept) or len(order) :] == kept


@thorough
@given(pod=pods(), direct=st.booleans())
def test_a_pod_has_one_place_and_nothing_that_keeps_it_away(pod: Json, direct: bool) -> None:
    try:
        spec = forge(pod, context_for(pod, direct_scheduling=direct))["spec"]
    except Refused:
        return
    assert spec.get("nodeName") == ("n1" if direct else None)
    assert ("affinity" in spec) != direct
    away = {"nodeSelector", "schedulerName", "schedulingGates", "topologySpreadConstraints"}
    assert not (away | {"priority", "preemptionPolicy", "overhead"}) & spec.keys()
