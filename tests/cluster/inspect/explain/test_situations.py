"""Tests of explanations of situations that are staged on two real control planes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.inspect.explain.report import Explanation, ExplanationRule
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES, PODS
from kubeocean.runtime.objects import Resource, Untyped
from kubeocean.syncer.pods.views import PHYSICAL_PODS
from support.doctor_command import output_of
from support.doctor_env import DoctorEnv, refuses
from support.faults import Faults
from support.wait import until

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Untyped)
ADMISSION = "admissionregistration.k8s.io"
RULES = Resource(
    ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, Untyped
)
RULE_BINDINGS = Resource(
    ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
    False, Untyped,
)  # fmt: skip
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, Untyped)
JSON = ("-o", "json")
ABSENT = {
    ExplanationRule.BINDING_GONE,
    ExplanationRule.LOST,
    ExplanationRule.NODE_GONE,
    ExplanationRule.NOT_FOUND,
    ExplanationRule.NO_CREDENTIAL,
    ExplanationRule.NO_NODE,
    ExplanationRule.NO_POLICY,
    ExplanationRule.TAKEN_BACK,
}
HALF = [{"resource": "cpu", "percent": 50}]
VNODE_ONLY = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]


def closed() -> list[dict[str, str]]:
    """Return a window that is closed for hours."""
    start = datetime.now(UTC) + timedelta(hours=6)
    return [{"start": f"{start:%H:%M}", "end": f"{start + timedelta(minutes=5):%H:%M}"}]


def requesting(**requests: str) -> list[dict[str, object]]:
    return [{"name": "c", "image": "none", "resources": {"requests": requests}}]


# Pods without a node


async def test_a_pod_requests_more_than_the_limit_lends(stage: DoctorEnv) -> None:
    async with stage.lending(resourceLimits=HALF):
        await stage.pod(bound=False, containers=requesting(cpu="6"))
        explanation = await stage.pod_is(ExplanationRule.TOO_LITTLE)
        await until(lambda: scheduler_reported(stage))
    assert f"requests cpu 6, and no virtual node has more free than 4 ({stage.vnode})" in (
        explanation.verdict
    )
    policy = f"{stage.name}-policy"
    assert f"cpu 4 of 8 (policy {policy} lends 50 % of the 8 that are left)" in explanation.verdict


async def scheduler_reported(stage: DoctorEnv) -> bool:
    return any("the scheduler reports" in each for each in (await stage.of_pod()).reasons)


async def test_a_pod_waits_for_a_window(stage: DoctorEnv) -> None:
    windows = closed()
    async with stage.lending(timeWindows=windows):
        await stage.pod(bound=False, tolerations=VNODE_ONLY)
        explanation = await stage.pod_is(ExplanationRule.WINDOW_CLOSED)
    assert f"the window of policy {stage.name}-policy is closed until" in explanation.verdict
    assert windows[0]["start"] in explanation.verdict


async def test_a_pod_does_not_tolerate_virtual_nodes(stage: DoctorEnv) -> None:
    async with stage.lending():
        await stage.pod(bound=False, tolerations=[])
        explanation = await stage.pod_is(ExplanationRule.NOT_TOLERATED)
    assert "does not tolerate kubeocean.io/vnode:NoSchedule" in explanation.verdict


async def test_a_pod_selects_no_virtual_node(stage: DoctorEnv) -> None:
    async with stage.lending():
        await stage.pod(bound=False, nodeSelector={"test": "nowhere"})
        explanation = await stage.pod_is(ExplanationRule.NOT_SELECTED)
    assert "its selectors match none of" in explanation.verdict


# Bound pods that cannot start


async def test_a_quota_of_the_worker_is_exceeded(stage: DoctorEnv) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    await stage.worker_api.create(QUOTAS, quota, namespace=stage.mount)
    counted = MergePatch({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    await stage.worker_api.patch(QUOTAS, "few", counted, stage.mount, subresource="status")
    await until(lambda: refuses(stage, "exceeded quota"))
    async with stage.lending():
        await stage.pod()
        explanation = await stage.pod_is(ExplanationRule.QUOTA)
    assert f"worker {stage.name} refuses it, its quota is exceeded: few, requested: pods=1" in (
        explanation.verdict
    )


async def test_the_worker_does_not_admit_a_pod(stage: DoctorEnv) -> None:
    here = {"matchLabels": {"kubernetes.io/metadata.name": stage.mount}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    rule = {
        "metadata": {"name": stage.name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": here,
                "resourceRules": [{**pods, "operations": ["CREATE"]}],
            },
            "validations": [{"expression": "false", "message": "no pods on Mondays"}],
        },
    }
    await stage.worker_api.create(RULES, rule)
    binding = {"policyName": stage.name, "validationActions": ["Deny"]}
    await stage.worker_api.create(
        RULE_BINDINGS, {"metadata": {"name": stage.name}, "spec": binding}
    )
    await until(lambda: refuses(stage, "no pods on Mondays"))
    async with stage.lending():
        await stage.pod()
        explanation = await stage.pod_is(ExplanationRule.ADMISSION)
    assert f"{stage.name} of worker {stage.name} does not admit it" in explanation.verdict
    assert "no pods on Mondays" in explanation.verdict


async def test_a_pod_refers_to_an_object_that_does_not_exist(stage: DoctorEnv) -> None:
    container = {"name": "c", "image": "none", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    async with stage.lending():
        await stage.pod(containers=[container])
        explanation = await stage.pod_is(ExplanationRule.MISSING)
        text = f"it refers to ConfigMap {stage.namespace}/settings, which does not exist"
        assert text in explanation.verdict
        await stage.computing_api.create(
            CONFIG_MAPS, {"metadata": {"name": "settings"}}, namespace=stage.namespace
        )
        await until(stage.ppods)
        assert (await stage.of_pod()).rule is ExplanationRule.STARTS


async def test_a_pod_names_a_node_outside_its_window(stage: DoctorEnv) -> None:
    async with stage.lending(timeWindows=closed()):
        await stage.pod()
        explanation = await stage.pod_is(ExplanationRule.NODE_CLOSED)
    assert f"node {stage.vnode} started no pods when it arrived" in explanation.verdict
    assert any("starts no pods now" in each for each in explanation.reasons)
    assert any("without spec.nodeName" in each for each in explanation.remedies)


async def test_a_pod_requests_a_host_port_that_is_taken(stage: DoctorEnv) -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}]
    containers = [{"name": "c", "image": "none", "ports": ports}]
    holder = {
        "metadata": {"name": "holder"},
        "spec": {"nodeName": stage.pnode, "containers": containers},
    }
    await stage.worker_api.create(PODS, holder, namespace=stage.mount)
    async with stage.lending():
        await stage.pod(containers=containers)
        explanation = await stage.pod_is(ExplanationRule.PORT_TAKEN)
    assert any("8080/TCP is taken" in each for each in explanation.reasons)


async def test_a_pod_of_a_daemon_set_is_not_replicated(stage: DoctorEnv) -> None:
    labels = {"app": stage.name}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": stage.vnode},
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "none"}],
    }
    daemons = {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    async with stage.lending():
        await stage.computing_api.create(DAEMON_SETS, daemons, namespace=stage.namespace)

        async def reported() -> bool:
            pods = (await stage.computing_api.list(PODS, stage.namespace)).items
            assert len(pods) == 1
            explanation = await stage.of_pod(pods[0].name)
            assert explanation.rule is ExplanationRule.STAYS_ABOVE, explanation
            return any("the syncer reported NotReplicated" in r for r in explanation.reasons)

        await until(reported)


async def test_a_limit_with_a_wrong_name_withholds_what_it_probably_meant(
    stage: DoctorEnv,
) -> None:
    typo = [{"resource": "memroy", "percent": 50}, *HALF]
    async with stage.lending(resourceLimits=typo):

        async def explained() -> Explanation:
            explanation = await stage.of_node()
            assert explanation.rule is ExplanationRule.LENT
            assert not any("instead of" in each for each in explanation.reasons), explanation
            return explanation

        explanation = await until(explained)
    policy = f"{stage.name}-policy"
    text = f"memory 0 of 32Gi (policy {policy} limits memroy, which no node has)"
    assert text in explanation.verdict
    assert explanation.remedies[0] == f"a correct name instead of memroy in policy {policy}"


async def test_both_names_of_a_physical_pod_are_taken(stage: DoctorEnv) -> None:
    async with stage.lending():
        pass
    pod = await stage.pod()
    first = naming.physical_name(pod.name, pod.namespace)
    second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
    for name in (first, second):
        await foreign(stage, name)
    async with stage.working():
        explanation = await stage.pod_is(ExplanationRule.NAME_TAKEN)
    assert f"{stage.mount}/{first}" in explanation.verdict
    assert "belong to other owners" in explanation.verdict


async def foreign(stage: DoctorEnv, name: str) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {"nodeName": stage.pnode, "containers": [{"name": "c", "image": "none"}]},
    }
    await stage.worker_api.create(PODS, body, namespace=stage.mount)


# Pods with a physical pod


async def test_the_worker_cannot_pull_an_image(stage: DoctorEnv) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "none"'}
    async with stage.lending():
        await stage.pod()
        state = {"name": "c", "state": {"waiting": waiting}, "ready": False, "restartCount": 0}
        state |= {"image": "none", "imageID": ""}
        await stage.status_below(phase="Pending", containerStatuses=[state])
        explanation = await stage.pod_is(ExplanationRule.IMAGE)
    assert "cannot get the image of c: ImagePullBackOff" in explanation.verdict
    assert waiting["message"] in explanation.reasons


async def test_the_scheduler_of_the_worker_has_no_node(stage: DoctorEnv) -> None:
    await stage.computing_api.patch(
        CLUSTER_BINDINGS, stage.name, MergePatch({"spec": {"directScheduling": False}})
    )
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition |= {"message": "0/7 nodes are available: 7 Insufficient cpu."}
    async with stage.lending():
        await stage.pod()
        await stage.status_below(phase="Pending", conditions=[condition])
        explanation = await stage.pod_is(ExplanationRule.UNSCHEDULED)
    assert (
        f"the scheduler of worker {stage.name} has no node for it: 0/7 nodes" in explanation.verdict
    )


async def test_a_running_pod_has_its_node_and_its_physical_name(stage: DoctorEnv) -> None:
    async with stage.lending():
        await foreign(stage, naming.physical_name("web", stage.namespace))
        pod = await stage.pod()
        await stage.status_below(phase="Running")
        explanation = await stage.pod_is(ExplanationRule.RUNS)
    second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
    where = f"it runs in worker {stage.name} on node {stage.pnode} as {stage.mount}/{second}"
    assert explanation.verdict == where
    assert any("belongs to another owner" in each for each in explanation.reasons)


async def test_a_lost_pod(stage: DoctorEnv) -> None:
    async with stage.lending():
        await stage.pod()
        ppod = await stage.status_below(phase="Running")
        await stage.pod_is(ExplanationRule.RUNS)
        await until(lambda: shows(stage, "Running"))
        await stage.worker_api.delete(
            PHYSICAL_PODS, ppod.name, stage.mount, uid=ppod.uid, grace_s=0
        )
        await until(lambda: shows(stage, "Failed"))
        explanation = await stage.pod_is(ExplanationRule.LOST)
    assert explanation.verdict == "it was lost: Physical pod was deleted unexpectedly"


async def shows(stage: DoctorEnv, phase: str) -> bool:
    return (await stage.computing_api.get(PODS, "web", stage.namespace)).status.phase == phase


async def test_an_evicted_pod(stage: DoctorEnv) -> None:
    async with stage.lending(forceReclaim=True):
        await stage.pod(tolerations=VNODE_ONLY)
        await stage.status_below(phase="Running")
        await stage.patch_policy(f"{stage.name}-policy", timeWindows=closed())

        async def evicted() -> Explanation:
            explanation = await stage.of_pod()
            assert explanation.rule is ExplanationRule.EVICTED, explanation.verdict
            assert "policy" in explanation.verdict
            return explanation

        explanation = await until(evicted)
    # The policy and the events of the pod record it, also when the pod is gone.
    assert f"policy {stage.name}-policy" in explanation.verdict
    assert stage.vnode in explanation.verdict


# A worker that cannot be read


async def test_a_worker_that_does_not_answer(stage: DoctorEnv) -> None:
    async with stage.lending():
        await stage.pod()
        await until(stage.ppods)
    await stage.cut()
    pod, node = await stage.of_pod(), await stage.of_node(stage.vnode)
    assert (pod.rule, node.rule) == (ExplanationRule.WORKER_UNREAD, ExplanationRule.WORKER_UNREAD)
    text = f"the worker of binding {stage.name} cannot be read"
    assert pod.verdict.startswith(text)
    assert node.verdict.startswith(text)
    assert any("could not reach https://127.0.0.1:1" in each for each in pod.reasons)
    binding = await stage.of_binding()
    assert binding.rule is ExplanationRule.UNREACHABLE


async def test_a_syncer_that_is_silent(stage: DoctorEnv) -> None:
    async with stage.lending():
        pass
    old = MergePatch({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    await stage.computing_api.patch(LEASES, stage.vnode, old, "kube-node-lease")
    explanation = await stage.of_node(stage.vnode)
    assert explanation.rule is ExplanationRule.SYNCER_SILENT
    assert "it has no heartbeat, though the worker answers" in explanation.verdict
    await stage.pod()
    assert (await stage.of_pod()).rule is ExplanationRule.SYNCER_SILENT


@pytest.mark.parametrize("kind", ["pod", "node", "binding"])
async def test_a_user_without_rights_gets_no_conclusion(stage: DoctorEnv, kind: str) -> None:
    """Objects that may not be read are not called absent."""
    kubeconfig = stage.computing.user(f"{stage.name}-stranger")
    name = {"pod": "web", "node": stage.vnode, "binding": stage.name}[kind]
    code, out, err = await output_of("explain", kind, name, f"--kubeconfig={kubeconfig}", *JSON)
    document = json.loads(out)
    assert (code, document["rule"]) == (1, "NotRead"), (document, err)
    assert any("forbidden" in each for each in document["reasons"])
    assert document["notRead"]


@pytest.mark.parametrize("status", [403, 503])
async def test_no_kind_that_cannot_be_read_is_called_absent(stage: DoctorEnv, status: int) -> None:
    """Each kind of the computing cluster in turn cannot be read."""
    async with stage.lending():
        await stage.pod()
        await stage.pod("pending", bound=False, nodeSelector={"test": "nowhere"})
        await stage.status_below(phase="Running")
        await stage.pod_is(ExplanationRule.RUNS)
        for path in (
            "/nodes",
            "/clusterbindings",
            "/secrets/",
            "/namespaces/kube-system",
            "/pods/",
        ):
            async with unreadable(stage, path, status) as viewer:
                explanations = [
                    await viewer.of_pod(),
                    await viewer.of_pod("pending"),
                    await viewer.of_node(stage.vnode),
                    await viewer.of_binding(),
                ]
            rules = {each.rule for each in explanations}
            assert not rules & ABSENT, (path, [each.verdict for each in explanations])
            assert rules & {ExplanationRule.NOT_READ, ExplanationRule.WORKER_UNREAD}, (path, rules)
            assert any(each.unread or each.reasons for each in explanations)


@asynccontextmanager
async def unreadable(stage: DoctorEnv, path: str, status: int) -> AsyncIterator[DoctorEnv]:
    """Answer reads of these paths in the computing cluster with an error."""
    faults = Faults()
    faults.answer(status, times=1000, when=lambda request: path in f"{request.path}/")
    client = stage.computing.client(wrap=faults.wrap)
    try:
        yield replace(stage, computing_api=client)
    finally:
        await client.close()


# Nodes


async def test_a_lent_node_is_explained_with_amounts_and_its_policy(stage: DoctorEnv) -> None:
    mine = {"nodeName": stage.pnode, "containers": requesting(cpu="2", memory="8Gi")}
    other = {"metadata": {"name": "theirs"}, "spec": mine}
    await stage.worker_api.create(PODS, other, namespace=stage.mount)
    async with stage.lending(resourceLimits=HALF):
        await stage.lend(f"{stage.name}-second")
        explanation = await stage.of_node(stage.vnode)
        by_its_own_name = await stage.of_node(stage.pnode)
    policy = f"{stage.name}-policy"
    assert explanation.rule is by_its_own_name.rule is ExplanationRule.LENT
    text = f"lent by policy {policy} and offers cpu 3 of 8 (policy {policy} lends 50 % of the 6"
    assert text in explanation.verdict
    assert "memory 24Gi of 32Gi (pods of others request 8Gi)" in explanation.verdict
    (lines,) = [section.lines for section in explanation.sections if section.title == "policies"]
    assert lines[0].startswith(f"{policy} decides")
    assert any(each.startswith(f"{stage.name}-second does not") for each in lines)


async def test_a_node_outside_its_window(stage: DoctorEnv) -> None:
    async with stage.lending(timeWindows=closed(), timeZone="Asia/Tokyo"):
        explanation = await stage.of_node(stage.vnode)
    assert explanation.rule is ExplanationRule.WINDOW_CLOSED
    assert "Asia/Tokyo" in explanation.verdict


async def test_a_node_that_no_policy_selects(stage: DoctorEnv) -> None:
    await stage.lend(nodeSelector=stage.selector(role="other"))
    async with stage.working():
        explanation = await stage.of_node(stage.pnode)
    assert explanation.rule is ExplanationRule.NO_POLICY
    assert f"no policy applies to it ({stage.name}-policy)" in explanation.verdict


# Bindings


async def test_an_explanation_is_printed_as_text_and_document(stage: DoctorEnv) -> None:
    where = f"--kubeconfig={stage.computing.kubeconfig}"
    code, out, err = await output_of("explain", "binding", stage.name, where)
    # The output has a line about the progress if the clusters answer slowly
    assert (code, err.replace("waiting for the answers of the clusters …\n", "")) == (0, "")
    text = f"binding {stage.name}: it lends nothing: no policy of the worker names it"
    assert out.splitlines()[:2] == [text, "  decided by: NoPolicy"]
    code, out, err = await output_of("explain", "binding", stage.name, where, "-o", "yaml")
    assert "rule: NoPolicy\n" in out
    code, out, err = await output_of("explain", "pod", "unknown", where)
    assert (code, "there is no such pod" in out) == (1, True), (out, err)
    code, out, err = await output_of("explain", "pod", f"{stage.namespace}/unknown", where)
    assert (code, f"pod {stage.namespace}/unknown: " in out) == (1, True), (out, err)
    code, out, err = await output_of("explain", "pod", "here/unknown", "-n", "another", where)
    text = "pod: is not in another, the value of --namespace"
    assert (code, out, text in err) == (2, "", True), (out, err)
    code, out, err = await output_of("explain", "node", "n", "--binding=unknown", where)
    text = "--binding: there is no such binding; there are: "
    assert (code, out, text in err) == (2, "", True), (out, err)


async def test_a_binding_that_works(stage: DoctorEnv) -> None:
    async with stage.lending():
        explanation = await stage.of_binding()
    assert explanation.rule is ExplanationRule.WORKS
    assert f"1 of 1 virtual node Ready; lent now by {stage.name}-policy" in explanation.verdict


async def test_a_credential_with_too_few_rights(stage: DoctorEnv) -> None:
    kubeconfig = await stage.worker.service_account(stage.mount, "default")
    await stage.cut(kubeconfig.read_bytes())
    explanation = await stage.of_binding()
    assert explanation.rule is ExplanationRule.RIGHTS
    assert any("list, watch nodes" in each for each in explanation.reasons), explanation.reasons
    assert any(each.startswith("policies of the worker") for each in explanation.unread)


async def test_a_deleted_binding_is_explained_by_what_it_waits_for(stage: DoctorEnv) -> None:
    async with stage.lending():
        await stage.pod(terminationGracePeriodSeconds=600)
        await stage.status_below(phase="Running")
        await stage.unbind()

        async def drains() -> Explanation:
            explanation = await stage.of_binding()
            assert explanation.rule is ExplanationRule.DRAINING
            assert "Still there: 1 virtual node" in explanation.verdict
            return explanation

        explanation = await until(drains)
    assert "kubeocean.io/clusterbinding-syncer" in explanation.reasons[0]
