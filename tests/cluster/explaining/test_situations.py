"""Situations, staged on two real control planes: the page about each tells the truth."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from doctors import said_by
from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.explaining.story import Rule, Story
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES, PODS
from kubeocean.runtime.objects import Resource, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.podviews import PHYSICAL_PODS
from stages import Stage, refuses
from waiting import until

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Untyped)
ADMISSION = "admissionregistration.k8s.io"
RULES = Resource(
    ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False, Untyped
)
RULE_BINDINGS = Resource(
    ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
    False, Untyped,
)  # fmt: skip
HALF = [{"resource": "cpu", "percent": 50}]
VNODE_ONLY = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]


def closed() -> list[dict[str, str]]:
    """A window that is not open now, nor soon."""
    start = datetime.now(UTC) + timedelta(hours=6)
    return [{"start": f"{start:%H:%M}", "end": f"{start + timedelta(minutes=5):%H:%M}"}]


def asking(**requests: str) -> list[dict[str, object]]:
    return [{"name": "c", "image": "none", "resources": {"requests": requests}}]


# Pods that have no node


async def test_a_pod_asks_for_more_than_the_limit_lends(stage: Stage) -> None:
    async with stage.lending(resourceLimits=HALF):
        await stage.pod(bound=False, containers=asking(cpu="6"))
        story = await stage.pod_is(Rule.TOO_LITTLE)
        await until(lambda: scheduler_spoke(stage))
    assert f"requests cpu 6, and no virtual node has more free than 4 ({stage.vnode})" in (
        story.verdict
    )
    policy = f"{stage.name}-policy"
    assert f"cpu 4 of 8 (policy {policy} lends 50 % of the 8 that are left)" in story.verdict


async def scheduler_spoke(stage: Stage) -> bool:
    return any("the scheduler says" in each for each in (await stage.of_pod()).reasons)


async def test_a_pod_waits_for_a_window(stage: Stage) -> None:
    windows = closed()
    async with stage.lending(timeWindows=windows):
        await stage.pod(bound=False, tolerations=VNODE_ONLY)
        story = await stage.pod_is(Rule.WINDOW_CLOSED)
    assert f"the window of policy {stage.name}-policy is closed until" in story.verdict
    assert windows[0]["start"] in story.verdict


async def test_a_pod_does_not_tolerate_virtual_nodes(stage: Stage) -> None:
    async with stage.lending():
        await stage.pod(bound=False, tolerations=[])
        story = await stage.pod_is(Rule.NOT_TOLERATED)
    assert "does not tolerate kubeocean.io/vnode:NoSchedule" in story.verdict


async def test_a_pod_selects_no_virtual_node(stage: Stage) -> None:
    async with stage.lending():
        await stage.pod(bound=False, nodeSelector={"test": "nowhere"})
        story = await stage.pod_is(Rule.NOT_SELECTED)
    assert "its selectors match none of" in story.verdict


# Pods that have one, and cannot start


async def test_a_quota_of_the_worker_is_exceeded(stage: Stage) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    await stage.below.create(QUOTAS, quota, namespace=stage.mount)
    counted = MergePatch({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    await stage.below.patch(QUOTAS, "few", counted, stage.mount, subresource="status")
    await until(lambda: refuses(stage, "exceeded quota"))
    async with stage.lending():
        await stage.pod()
        story = await stage.pod_is(Rule.QUOTA)
    assert f"worker {stage.name} refuses it, its quota is exceeded: few, requested: pods=1" in (
        story.verdict
    )


async def test_the_worker_does_not_admit_it(stage: Stage) -> None:
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
    await stage.below.create(RULES, rule)
    binding = {"policyName": stage.name, "validationActions": ["Deny"]}
    await stage.below.create(RULE_BINDINGS, {"metadata": {"name": stage.name}, "spec": binding})
    await until(lambda: refuses(stage, "no pods on Mondays"))
    async with stage.lending():
        await stage.pod()
        story = await stage.pod_is(Rule.ADMISSION)
    assert f"{stage.name} of worker {stage.name} does not admit it" in story.verdict
    assert "no pods on Mondays" in story.verdict


async def test_a_pod_refers_to_what_is_not_there(stage: Stage) -> None:
    container = {"name": "c", "image": "none", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    async with stage.lending():
        await stage.pod(containers=[container])
        story = await stage.pod_is(Rule.MISSING)
        said = f"it refers to ConfigMap {stage.namespace}/settings, which does not exist"
        assert said in story.verdict
        await stage.above.create(
            CONFIG_MAPS, {"metadata": {"name": "settings"}}, namespace=stage.namespace
        )
        await until(stage.ppods)
        assert (await stage.of_pod()).rule is Rule.STARTS


async def test_both_names_are_taken(stage: Stage) -> None:
    async with stage.lending():
        pass
    pod = await stage.pod()
    first = naming.physical_name(pod.name, pod.namespace)
    second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
    for name in (first, second):
        await foreign(stage, name)
    async with stage.working():
        story = await stage.pod_is(Rule.NAME_TAKEN)
    assert f"{stage.mount}/{first}" in story.verdict
    assert "belong to somebody else" in story.verdict


async def foreign(stage: Stage, name: str) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {"nodeName": stage.pnode, "containers": [{"name": "c", "image": "none"}]},
    }
    await stage.below.create(PODS, body, namespace=stage.mount)


# Pods that the worker has


async def test_an_image_cannot_be_had_below(stage: Stage) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "none"'}
    async with stage.lending():
        await stage.pod()
        state = {"name": "c", "state": {"waiting": waiting}, "ready": False, "restartCount": 0}
        state |= {"image": "none", "imageID": ""}
        await stage.status_below(phase="Pending", containerStatuses=[state])
        story = await stage.pod_is(Rule.IMAGE)
    assert "cannot get the image of c: ImagePullBackOff" in story.verdict
    assert waiting["message"] in story.reasons


async def test_the_workers_scheduler_has_no_node(stage: Stage) -> None:
    await stage.above.patch(
        CLUSTER_BINDINGS, stage.name, MergePatch({"spec": {"directScheduling": False}})
    )
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    said |= {"message": "0/7 nodes are available: 7 Insufficient cpu."}
    async with stage.lending():
        await stage.pod()
        await stage.status_below(phase="Pending", conditions=[said])
        story = await stage.pod_is(Rule.UNSCHEDULED)
    assert f"the scheduler of worker {stage.name} has no node for it: 0/7 nodes" in story.verdict


async def test_where_a_pod_runs_and_under_which_name(stage: Stage) -> None:
    async with stage.lending():
        await foreign(stage, naming.physical_name("web", stage.namespace))
        pod = await stage.pod()
        await stage.status_below(phase="Running")
        story = await stage.pod_is(Rule.RUNS)
    second = naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid)
    where = f"it runs in worker {stage.name} on node {stage.pnode} as {stage.mount}/{second}"
    assert story.verdict == where
    assert any("belongs to somebody else" in each for each in story.reasons)


async def test_a_lost_pod(stage: Stage) -> None:
    async with stage.lending():
        await stage.pod()
        ppod = await stage.status_below(phase="Running")
        await stage.pod_is(Rule.RUNS)
        await until(lambda: shows(stage, "Running"))
        await stage.below.delete(PHYSICAL_PODS, ppod.name, stage.mount, uid=ppod.uid, grace_s=0)
        await until(lambda: shows(stage, "Failed"))
        story = await stage.pod_is(Rule.LOST)
    assert story.verdict == "it was lost: Physical pod was deleted unexpectedly"


async def shows(stage: Stage, phase: str) -> bool:
    return (await stage.above.get(PODS, "web", stage.namespace)).status.phase == phase


async def test_an_evicted_pod(stage: Stage) -> None:
    async with stage.lending(forceReclaim=True):
        await stage.pod(tolerations=VNODE_ONLY)
        await stage.status_below(phase="Running")
        await stage.patch_policy(f"{stage.name}-policy", timeWindows=closed())

        async def told() -> Story:
            story = await stage.of_pod()
            assert story.rule is Rule.EVICTED, story.verdict
            assert "policy" in story.verdict
            return story

        story = await until(told)
    # Told by the pod while it is there, and by an Event when it is gone.
    assert f"policy {stage.name}-policy" in story.verdict
    assert stage.vnode in story.verdict


# A worker that cannot be seen


async def test_a_worker_that_does_not_answer(stage: Stage) -> None:
    async with stage.lending():
        await stage.pod()
        await until(stage.ppods)
    await stage.cut()
    pod, node = await stage.of_pod(), await stage.of_node(stage.vnode)
    assert (pod.rule, node.rule) == (Rule.WORKER_UNREAD, Rule.WORKER_UNREAD)
    said = f"the worker of binding {stage.name} cannot be read"
    assert pod.verdict.startswith(said)
    assert node.verdict.startswith(said)
    assert any("could not reach https://127.0.0.1:1" in each for each in pod.reasons)
    binding = await stage.of_binding()
    assert binding.rule is Rule.UNREACHABLE


async def test_a_syncer_that_is_silent(stage: Stage) -> None:
    async with stage.lending():
        pass
    old = MergePatch({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    await stage.above.patch(LEASES, stage.vnode, old, "kube-node-lease")
    story = await stage.of_node(stage.vnode)
    assert story.rule is Rule.SYNCER_SILENT
    assert "it has no heartbeat, though the worker answers" in story.verdict
    await stage.pod()
    assert (await stage.of_pod()).rule is Rule.SYNCER_SILENT


# Nodes


async def test_a_node_tells_its_figures_and_who_decided(stage: Stage) -> None:
    mine = {"nodeName": stage.pnode, "containers": asking(cpu="2", memory="8Gi")}
    other = {"metadata": {"name": "theirs"}, "spec": mine}
    await stage.below.create(PODS, other, namespace=stage.mount)
    async with stage.lending(resourceLimits=HALF):
        await stage.lend(f"{stage.name}-second")
        story = await stage.of_node(stage.vnode)
        by_its_own_name = await stage.of_node(stage.pnode)
    policy = f"{stage.name}-policy"
    assert story.rule is by_its_own_name.rule is Rule.LENT
    said = f"lent by policy {policy} and offers cpu 3 of 8 (policy {policy} lends 50 % of the 6"
    assert said in story.verdict
    assert "memory 24Gi of 32Gi (pods of others request 8Gi)" in story.verdict
    (lines,) = [section.lines for section in story.sections if section.title == "policies"]
    assert lines[0].startswith(f"{policy} decides")
    assert any(each.startswith(f"{stage.name}-second does not") for each in lines)


async def test_a_node_outside_its_window(stage: Stage) -> None:
    async with stage.lending(timeWindows=closed(), timeZone="Asia/Tokyo"):
        story = await stage.of_node(stage.vnode)
    assert story.rule is Rule.WINDOW_CLOSED
    assert "Asia/Tokyo" in story.verdict


async def test_a_node_that_no_policy_selects(stage: Stage) -> None:
    await stage.lend(nodeSelector=stage.selector(role="other"))
    async with stage.working():
        story = await stage.of_node(stage.pnode)
    assert story.rule is Rule.NO_POLICY
    assert f"no policy applies to it ({stage.name}-policy)" in story.verdict


# Bindings


async def test_a_page_is_printed_for_people_and_for_programs(stage: Stage) -> None:
    where = f"--kubeconfig={stage.computing.kubeconfig}"
    code, out, err = await said_by("explain", "binding", stage.name, where)
    assert (code, err) == (0, "")
    said = f"binding {stage.name}: it lends nothing: no policy of the worker names it"
    assert out.splitlines()[:2] == [said, "  decided by: NoPolicy"]
    code, out, err = await said_by("explain", "binding", stage.name, where, "-o", "yaml")
    assert "rule: NoPolicy\n" in out
    code, out, err = await said_by("explain", "pod", "nobody", where)
    assert (code, "there is no such pod" in out) == (1, True), (out, err)
    code, out, err = await said_by("explain", "pod", f"{stage.namespace}/nobody", where)
    assert (code, f"pod {stage.namespace}/nobody: " in out) == (1, True), (out, err)
    code, out, err = await said_by("explain", "pod", "here/nobody", "-n", "there", where)
    said = "pod: is not in there, which --namespace says"
    assert (code, out, said in err) == (2, "", True), (out, err)
    code, out, err = await said_by("explain", "node", "n", "--binding=nobody", where)
    said = "--binding: there is no such binding; there are: "
    assert (code, out, said in err) == (2, "", True), (out, err)


async def test_a_binding_that_works(stage: Stage) -> None:
    async with stage.lending():
        story = await stage.of_binding()
    assert story.rule is Rule.WORKS
    assert f"1 of 1 virtual node Ready; lent now by {stage.name}-policy" in story.verdict


async def test_a_credential_with_too_few_rights(stage: Stage) -> None:
    kubeconfig = await stage.worker.service_account(stage.mount, "default")
    await stage.cut(kubeconfig.read_bytes())
    story = await stage.of_binding()
    assert story.rule is Rule.RIGHTS
    assert any("list, watch nodes" in each for each in story.reasons), story.reasons
    assert any(each.startswith("policies of the worker") for each in story.unread)


async def test_a_binding_that_is_deleted_tells_what_is_waited_for(stage: Stage) -> None:
    async with stage.lending():
        await stage.pod(terminationGracePeriodSeconds=600)
        await stage.status_below(phase="Running")
        await stage.unbind()

        async def drains() -> Story:
            story = await stage.of_binding()
            assert story.rule is Rule.DRAINING
            assert "Still there: 1 virtual node" in story.verdict
            return story

        story = await until(drains)
    assert "kubeocean.io/clusterbinding-syncer" in story.reasons[0]
