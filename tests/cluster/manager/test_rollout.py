"""Rollout on a real API server: made, followed, repaired, adopted, left alone."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.errors import NotFound
from kubeocean.installation.applying import resource_of
from kubeocean.local.faults import Crashed, Faults, writes
from kubeocean.manager.rolloutviews import DEPLOYMENTS, Standing
from kubeocean.runtime.kinds import SERVICES
from kubeocean.runtime.objects import Key
from kubeocean.runtime.patches import MergePatch, StrategicPatch
from rollouts import OBJECTS, Yard, container, made_by_go, settled
from waiting import until

# Made


async def test_a_first_look_makes_everything_and_a_second_one_nothing(yard: Yard) -> None:
    faults = Faults()
    async with yard.running(faults) as rollout:
        rolled = await rollout.ensure(yard.binding)
        cluster_id = yard.binding.spec.cluster_id
        assert await yard.names() == [
            f"kubeocean-proxier-{cluster_id}",
            f"kubeocean-proxier-{cluster_id}-svc",
            f"kubeocean-syncer-{cluster_id}",
        ]
        assert len(rolled.written) == 3
        assert rolled.adopted == ()
        assert not rolled.failed
        assert rolled.syncer.standing is Standing.ROLLING
        assert rolled.syncer.wanted == 2
        assert "its controller has not looked yet" in rolled.syncer.reason
        for component in ("syncer", "proxier"):
            (owner,) = (await yard.deployment(component))["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (yard.binding.uid, True)

        async def seen() -> bool:
            looked = await rollout.ensure(yard.binding)
            sides = (looked.syncer, looked.proxier)
            return all("0 of 2 replicas are available" in each.reason for each in sides)

        await until(seen)
        asked = len([each for each in faults.requests if not each.watches])
        again = await rollout.ensure(yard.binding)
        assert again.written == ()
        assert again.proxier.updated == 2
        assert len([each for each in faults.requests if not each.watches]) == asked
    assert faults.writes == 3


async def test_words_that_the_server_changes_are_no_reason_to_write(yard: Yard) -> None:
    text = yard.syncers.files["deployment.yaml"]
    divisor = "{name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1000m}}}"
    text = text.replace("        env:\n", f"        env:\n        - {divisor}\n")
    assert divisor in text
    yard.syncers.write(deployment__yaml=text.replace("'500m'", "0.5").replace("500m", "0.5"))
    faults = Faults()
    async with yard.running(faults) as rollout:
        await rollout.ensure(yard.binding)

        async def quiet() -> bool:
            before = faults.writes
            rolled = await rollout.ensure(yard.binding)
            assert rolled.written == ()
            return faults.writes == before and "available" in rolled.syncer.reason

        await until(quiet)
    assert (await yard.deployment("syncer"))["metadata"]["generation"] == 1


# Followed


async def test_an_edited_template_is_followed(yard: Yard) -> None:
    told: list[str] = []
    async with yard.running() as rollout:
        rollout.on_templates(lambda: told.append("templates"))
        await rollout.ensure(yard.binding)
        text = yard.syncers.files["deployment.yaml"]
        # Up to the next entry of the list, or the next field.
        pod_ip = re.compile(r"^ {8}- name: POD_IP\n(?: {10,}.*\n)+", re.MULTILINE)
        edited = pod_ip.sub("", text.replace("replicas: 2", "replicas: 3"))
        assert len(edited) < len(text) - 50
        yard.syncers.write(deployment__yaml=edited)
        await until(lambda: told, what="news of the templates")
        rolled = await rollout.ensure(yard.binding)
        name = f"kubeocean-syncer-{yard.binding.spec.cluster_id}"
        assert rolled.written == (f"Deployment {yard.namespace}/{name}",)
        found = await yard.deployment("syncer")
        assert found["spec"]["replicas"] == 3
        assert "POD_IP" not in {each["name"] for each in container(found)["env"]}
        await settled(rollout, yard.binding)


async def test_an_annotation_of_the_binding_is_followed(yard: Yard) -> None:
    async with yard.running() as rollout:
        await rollout.ensure(yard.binding)
        annotations = {DEFAULT.logs_proxy_enabled: "true", DEFAULT.logs_proxy_secret_name: "mine"}
        patch = MergePatch({"metadata": {"annotations": annotations}})
        changed = await yard.client.patch(CLUSTER_BINDINGS, yard.binding.name, patch)
        rolled = await rollout.ensure(changed)
        assert len(rolled.written) == 1
        assert "--tls-secret-name=mine" in container(await yard.deployment("proxier"))["args"]


async def test_what_no_template_wants_any_more_goes(yard: Yard) -> None:
    account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: 'own-{{.ClusterID}}'}\n"
    yard.syncers.write(serviceaccount__yaml=account)
    name = f"own-{yard.binding.spec.cluster_id}"
    accounts = resource_of({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}})
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
        assert f"ServiceAccount {yard.namespace}/{name}" in rolled.written
        await settled(rollout, yard.binding)
        yard.syncers.write(serviceaccount__yaml=None)

        async def gone() -> bool:
            await rollout.ensure(yard.binding)
            with suppress(NotFound):
                await yard.client.get(accounts, name, yard.namespace)
                return False
            return True

        await until(gone)
        assert len(await yard.names()) == 3


# Repaired

SYNCER, SERVICE = "kubeocean-syncer-{}", "kubeocean-proxier-{}-svc"
EDITS = {
    "replicas": (DEPLOYMENTS, SYNCER, {"spec": {"replicas": 0}}),
    "arguments": (
        DEPLOYMENTS,
        SYNCER,
        {"spec": {"template": {"spec": {"containers": [{"name": "syncer", "args": ["x"]}]}}}},
    ),
    "labels": (DEPLOYMENTS, SYNCER, {"metadata": {"labels": {group.APP_MANAGED_BY: None}}}),
    "owner": (
        DEPLOYMENTS,
        SYNCER,
        {"metadata": {"ownerReferences": [{"$patch": "replace"}]}},
    ),
    "digest": (DEPLOYMENTS, SYNCER, {"metadata": {"annotations": {DEFAULT.rollout_digest: "x"}}}),
    "selector": (SERVICES, SERVICE, {"spec": {"selector": {group.APP_NAME: "other"}}}),
    "ports": (SERVICES, SERVICE, {"spec": {"ports": [{"port": 10250, "targetPort": 1}]}}),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_what_somebody_edits_is_repaired(yard: Yard, edit: str) -> None:
    resource, name, patch = EDITS[edit]
    told: list[Key] = []
    async with yard.running() as rollout:
        await rollout.ensure(yard.binding)
        await settled(rollout, yard.binding)
        wanted = await yard.state()
        rollout.on_change(told.append)
        told.clear()
        name = name.format(yard.binding.spec.cluster_id)
        await yard.client.patch(resource, name, StrategicPatch(patch), yard.namespace)
        title = f"{resource.kind} {yard.namespace}/{name}"

        async def repaired() -> bool:
            await until(lambda: yard.binding.key in told, what="news of the edit")
            told.clear()  # statuses are news too
            written = (await rollout.ensure(yard.binding)).written
            assert written in ((), (title,))
            return bool(written)

        await until(repaired)
        assert await yard.state() == wanted
        await settled(rollout, yard.binding)


async def test_what_somebody_adds_stays(yard: Yard) -> None:
    async with yard.running() as rollout:
        await rollout.ensure(yard.binding)
        await settled(rollout, yard.binding)
        name = f"kubeocean-syncer-{yard.binding.spec.cluster_id}"
        restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
        added = {"name": "syncer", "env": [{"name": "MORE", "value": "1"}]}
        template = {"metadata": {"annotations": restarted}, "spec": {"containers": [added]}}
        patch = StrategicPatch({"spec": {"template": template}})
        client = yard.cluster.client()
        client.field_manager = "kubectl-edit"
        await client.patch(DEPLOYMENTS, name, patch, yard.namespace)
        await client.close()
        yard.syncers.write(
            deployment__yaml=yard.syncers.files["deployment.yaml"].replace(
                "replicas: 2", "replicas: 3"
            )
        )
        rolled = await rollout.ensure(yard.binding)
        assert len(rolled.written) == 1
        found = await yard.deployment("syncer")
        assert found["spec"]["replicas"] == 3
        assert found["spec"]["template"]["metadata"]["annotations"] == restarted
        assert {"name": "MORE", "value": "1"} in container(found)["env"]


async def test_what_somebody_deletes_comes_back(yard: Yard) -> None:
    told: list[Key] = []
    async with yard.running() as rollout:
        await rollout.ensure(yard.binding)
        await settled(rollout, yard.binding)
        wanted = await yard.state()
        rollout.on_change(told.append)
        for resource in OBJECTS:
            for each in (await yard.client.list(resource, yard.namespace)).items:
                told.clear()
                await yard.client.delete(resource, each.name, yard.namespace, uid=each.uid)
                await until(lambda: yard.binding.key in told, what="news of the deletion")

                async def back(title: str = f"{resource.kind} {each.key}") -> bool:
                    return title in (await rollout.ensure(yard.binding)).written

                await until(back)
        assert await yard.state() == wanted


# Adopted


@pytest.mark.parametrize("owned", [True, False])
async def test_what_the_earlier_implementation_made_is_adopted(yard: Yard, owned: bool) -> None:
    made = await yard.go_made(yard.binding, owned=owned)
    service = await yard.content(SERVICES, naming.proxier_service(yard.binding.spec.cluster_id))
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
        assert len(rolled.adopted) == len(rolled.written) == 3
        assert await yard.names() == sorted(made)
        await settled(rollout, yard.binding)
        assert (await rollout.ensure(yard.binding)).adopted == ()
    for component in ("syncer", "proxier"):
        found = await yard.deployment(component)
        name = found["metadata"]["name"]
        assert found["metadata"]["uid"] == made[name].uid
        assert found["metadata"]["ownerReferences"][0]["uid"] == yard.binding.uid
        labels = found["spec"]["selector"]["matchLabels"]
        assert labels["k8s-app"] == name  # as it was: it cannot change
        assert labels.items() <= found["spec"]["template"]["metadata"]["labels"].items()
        pod = found["spec"]["template"]["spec"]
        assert "volumes" not in pod
        assert "volumeMounts" not in container(found)
        assert container(found)["args"][0] == component
        assert "OF_GO" not in {each["name"] for each in container(found)["env"]}
        assert [each["name"] for each in pod["containers"]] == [component]
        assert found["spec"]["replicas"] == 2
    after = await yard.content(SERVICES, service["metadata"]["name"])
    assert after["metadata"]["uid"] == service["metadata"]["uid"]
    assert after["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    assert [each["name"] for each in after["spec"]["ports"]] == ["kubelet", "vnode-metrics"]


# Left alone


async def test_what_belongs_to_another_binding_is_left_alone(yard: Yard) -> None:
    told: list[Key] = []
    other = await yard.bind(yard.binding.spec.cluster_id)
    async with yard.running() as rollout:
        rollout.on_change(told.append)
        await rollout.ensure(yard.binding)
        before = await yard.state()
        rolled = await rollout.ensure(other)
        assert rolled.written == ()
        assert rolled.syncer.standing is rolled.proxier.standing is Standing.FOREIGN
        assert f"belongs to ClusterBinding {yard.binding.name}" in rolled.syncer.reason
        assert rolled.syncer.wanted == 0
        assert await rollout.remove(other) == []
        assert await yard.state() == before
        told.clear()
        assert await rollout.remove(yard.binding) == []
        await until(lambda: other.key in told, what="news for the one who waits")

        async def taken() -> bool:
            return not (await rollout.ensure(other)).failed

        await until(taken)
        assert len(await yard.names()) == 3


async def test_what_belongs_to_nobody_we_know_is_left_alone(yard: Yard) -> None:
    bodies = made_by_go(yard.binding, yard.namespace, owned=False)
    bodies[0]["metadata"]["labels"] = {"app": "mine"}
    made = await yard.client.create(DEPLOYMENTS, bodies[0])
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
        assert rolled.syncer.standing is Standing.FOREIGN
        assert not rolled.proxier.failed
        assert await rollout.remove(yard.binding) == []
    assert await yard.names() == [made.name]
    assert (await yard.deployment("syncer"))["spec"]["replicas"] == 1


async def test_a_broken_template_changes_nothing_that_runs(yard: Yard) -> None:
    good = yard.syncers.files["deployment.yaml"]
    async with yard.running() as rollout:
        await rollout.ensure(yard.binding)
        await settled(rollout, yard.binding)
        before = await yard.state()
        for bad, said in (
            ("{{if .TLSEnabled}}", "there is no variable .TLSEnabled"),
            (good.replace("{{.DeploymentName}}", "{{.Nmae}}"), "there is no variable .Nmae"),
            ("kind: [", "is not a YAML document"),
            (good.replace("replicas: 2", "replicas: many"), "replicas"),
            (None, "cannot read"),
        ):
            if bad is not None and bad.endswith("}}"):
                bad += "{{end}}"
            yard.syncers.write(deployment__yaml=bad)
            rolled = await rollout.ensure(yard.binding)
            assert rolled.syncer.failed
            assert said in rolled.syncer.reason
            assert rolled.syncer.wanted == 2
            assert not rolled.proxier.failed
            assert await yard.state() == before
        yard.syncers.write(deployment__yaml=good)
        assert not (await rollout.ensure(yard.binding)).failed
        assert await yard.state() == before


async def test_what_the_server_refuses_is_told(yard: Yard) -> None:
    yard.proxiers.write(proxierNamespace="there-is-no-such")
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
    assert rolled.proxier.standing is Standing.REFUSED
    assert "there-is-no-such" in rolled.proxier.reason
    assert not rolled.syncer.failed


async def test_a_selector_that_our_pods_cannot_match_is_told(yard: Yard) -> None:
    body = made_by_go(yard.binding, yard.namespace)[0]
    body["spec"]["selector"]["matchLabels"][group.APP_NAME] = "other"
    body["spec"]["template"]["metadata"]["labels"][group.APP_NAME] = "other"
    await yard.client.create(DEPLOYMENTS, body)
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
    assert rolled.syncer.standing is Standing.REFUSED
    assert "cannot change" in rolled.syncer.reason
    assert "OF_GO" in {each["name"] for each in container(await yard.deployment("syncer"))["env"]}


# Faults


async def test_a_cache_that_lags_is_waited_for(yard: Yard) -> None:
    faults = Faults()
    async with yard.running(faults) as rollout:
        faults.lag(0.5)
        assert len((await rollout.ensure(yard.binding)).written) == 3
        assert (await rollout.ensure(yard.binding)).written == ()
        assert faults.writes == 3


async def test_an_answer_that_is_lost_is_asked_for_again(yard: Yard) -> None:
    faults = Faults()
    async with yard.running(faults) as rollout:
        faults.lose_answer(times=2, when=writes)
        await rollout.ensure(yard.binding)
        await settled(rollout, yard.binding)
    assert len(await yard.names()) == 3
    assert (await yard.deployment("syncer"))["metadata"]["generation"] == 1


@pytest.mark.parametrize("begin", ["nothing", "made by go"])
async def test_a_crash_after_any_write_changes_nothing_in_the_end(yard: Yard, begin: str) -> None:
    async def sail(faults: Faults) -> None:
        """From the beginning, to the end or the crash, and then once more without faults."""
        cleaner, client = yard.rollout()
        assert await cleaner.remove(yard.binding) == []
        await client.close()
        if begin != "nothing":
            await yard.go_made(yard.binding)
        rollout, client = yard.rollout(faults)
        with suppress(Crashed):
            await rollout.ensure(yard.binding)
        await client.close()
        rollout, client = yard.rollout()
        await rollout.ensure(yard.binding)
        assert (await rollout.ensure(yard.binding)).written == ()
        await client.close()

    calm = Faults()
    await sail(calm)
    wanted = await yard.state()
    assert calm.writes == (3 if begin == "nothing" else 6)
    for n in range(1, calm.writes + 1):
        faults = Faults()
        faults.crash_after_write(n)
        await sail(faults)
        assert faults.crashed
        assert await yard.state() == wanted
