"""Rollout on a real API server: made, followed, repaired, adopted, left alone."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from kubeocean.api import group, naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Conflict, NotFound
from kubeocean.install.apply import resource_of
from kubeocean.install.templates import proxier_files, syncer_files
from kubeocean.install.values import Values
from kubeocean.manager.rollout_state import ComponentPhase
from kubeocean.runtime.client import MergePatch, StrategicPatch
from kubeocean.runtime.kinds import DEPLOYMENTS, SERVICES
from kubeocean.runtime.objects import Key
from support.faults import Crashed, Faults, writes
from support.rollout_env import OBJECTS, RolloutEnv, container, go_objects, settled
from support.wait import until

# Made


async def test_a_first_rollout_creates_all_objects_and_a_second_writes_nothing(
    rollout_env: RolloutEnv,
) -> None:
    faults = Faults()
    async with rollout_env.running(faults) as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        cluster_id = rollout_env.binding.spec.cluster_id
        assert await rollout_env.names() == [
            f"kubeocean-proxier-{cluster_id}",
            f"kubeocean-proxier-{cluster_id}-svc",
            f"kubeocean-syncer-{cluster_id}",
        ]
        assert len(rolled.written) == 5
        assert rolled.adopted == ()
        assert not rolled.failed
        assert rolled.syncer.phase is ComponentPhase.ROLLING
        assert rolled.syncer.desired == 2
        assert "its controller has not observed that yet" in rolled.syncer.reason
        for component in ("syncer", "proxier"):
            (owner,) = (await rollout_env.deployment(component))["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (rollout_env.binding.uid, True)

        async def seen() -> bool:
            looked = await rollout.ensure(rollout_env.binding)
            sides = (looked.syncer, looked.proxier)
            return all("0 of 2 replicas are available" in each.reason for each in sides)

        await until(seen)
        requests = len([each for each in faults.requests if not each.watches])
        again = await rollout.ensure(rollout_env.binding)
        assert again.written == ()
        assert again.proxier.updated == 2
        assert len([each for each in faults.requests if not each.watches]) == requests
    assert faults.writes == 5


async def test_values_that_the_server_normalizes_cause_no_write(rollout_env: RolloutEnv) -> None:
    text = rollout_env.syncers.files["deployment.yaml"]
    divisor = "{name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1000m}}}"
    text = text.replace("        env:\n", f"        env:\n        - {divisor}\n")
    assert divisor in text
    rollout_env.syncers.write(deployment__yaml=text.replace("'500m'", "0.5").replace("500m", "0.5"))
    faults = Faults()
    async with rollout_env.running(faults) as rollout:
        await rollout.ensure(rollout_env.binding)

        async def quiet() -> bool:
            before = faults.writes
            rolled = await rollout.ensure(rollout_env.binding)
            assert rolled.written == ()
            return faults.writes == before and "available" in rolled.syncer.reason

        await until(quiet)
    assert (await rollout_env.deployment("syncer"))["metadata"]["generation"] == 1


# Followed


async def test_an_edited_template_is_applied(rollout_env: RolloutEnv) -> None:
    changes: list[str] = []
    async with rollout_env.running() as rollout:
        rollout.on_templates(lambda: changes.append("templates"))
        await rollout.ensure(rollout_env.binding)
        text = rollout_env.syncers.files["deployment.yaml"]
        # Up to the next entry of the list, or the next field.
        pod_ip = re.compile(r"^ {8}- name: POD_IP\n(?: {10,}.*\n)+", re.MULTILINE)
        edited = pod_ip.sub("", text.replace("replicas: 2", "replicas: 3"))
        assert len(edited) < len(text) - 50
        rollout_env.syncers.write(deployment__yaml=edited)
        await until(lambda: changes, waiting_for="news of the templates")
        rolled = await rollout.ensure(rollout_env.binding)
        name = f"kubeocean-syncer-{rollout_env.binding.spec.cluster_id}"
        assert rolled.written == (f"Deployment {rollout_env.namespace}/{name}",)
        deployment = await rollout_env.deployment("syncer")
        assert deployment["spec"]["replicas"] == 3
        assert "POD_IP" not in {each["name"] for each in container(deployment)["env"]}
        await settled(rollout, rollout_env.binding)


async def test_syncers_follow_the_namespace_of_their_proxiers(rollout_env: RolloutEnv) -> None:
    async def named() -> str:
        variables = container(await rollout_env.deployment("syncer"))["env"]
        values = {each["name"]: each.get("value", "") for each in variables}
        return values.get("KUBEOCEAN_PROXIER_NAMESPACE", "")

    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        assert await named() == rollout_env.namespace
        rollout_env.proxiers.write(proxierNamespace="default")

        async def followed() -> bool:
            await rollout.ensure(rollout_env.binding)
            return await named() == "default"

        await until(followed)
        await settled(rollout, rollout_env.binding)


async def test_a_changed_annotation_of_the_binding_is_applied(rollout_env: RolloutEnv) -> None:
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        annotations = {DEFAULT.logs_proxy_enabled: "true", DEFAULT.logs_proxy_secret_name: "mine"}
        patch = MergePatch({"metadata": {"annotations": annotations}})
        changed = await rollout_env.client.patch(CLUSTER_BINDINGS, rollout_env.binding.name, patch)
        rolled = await rollout.ensure(changed)
        assert len(rolled.written) == 1
        assert (
            "--tls-secret-name=mine" in container(await rollout_env.deployment("proxier"))["args"]
        )


async def test_objects_that_no_template_contains_are_deleted(rollout_env: RolloutEnv) -> None:
    account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: 'own-{{.ClusterID}}'}\n"
    rollout_env.syncers.write(serviceaccount__yaml=account)
    name = f"own-{rollout_env.binding.spec.cluster_id}"
    accounts = resource_of({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}})
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        assert f"ServiceAccount {rollout_env.namespace}/{name}" in rolled.written
        await settled(rollout, rollout_env.binding)
        rollout_env.syncers.write(serviceaccount__yaml=None)
        for templates in (rollout_env.syncers, rollout_env.proxiers):
            templates.scale_to_zero()  # an account stays until no pod of the old template is left

        async def gone() -> bool:
            await rollout.ensure(rollout_env.binding)
            with suppress(NotFound):
                await rollout_env.client.get(accounts, name, rollout_env.namespace)
                return False
            return True

        await until(gone)
        assert len(await rollout_env.names()) == 3


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
async def test_edited_fields_are_reverted(rollout_env: RolloutEnv, edit: str) -> None:
    resource, name, patch = EDITS[edit]
    changed: list[Key] = []
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        await settled(rollout, rollout_env.binding)
        wanted = await rollout_env.state()
        rollout.on_change(changed.append)
        changed.clear()
        name = name.format(rollout_env.binding.spec.cluster_id)
        await rollout_env.client.patch(resource, name, StrategicPatch(patch), rollout_env.namespace)
        title = f"{resource.kind} {rollout_env.namespace}/{name}"

        async def repaired() -> bool:
            await until(lambda: rollout_env.binding.key in changed, waiting_for="news of the edit")
            changed.clear()  # statuses are news too
            written = (await rollout.ensure(rollout_env.binding)).written
            assert written in ((), (title,))
            return bool(written)

        await until(repaired)
        assert await rollout_env.state() == wanted
        await settled(rollout, rollout_env.binding)


async def test_added_fields_stay(rollout_env: RolloutEnv) -> None:
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        await settled(rollout, rollout_env.binding)
        name = f"kubeocean-syncer-{rollout_env.binding.spec.cluster_id}"
        restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
        added = {"name": "syncer", "env": [{"name": "MORE", "value": "1"}]}
        template = {"metadata": {"annotations": restarted}, "spec": {"containers": [added]}}
        patch = StrategicPatch({"spec": {"template": template}})
        client = rollout_env.cluster.client()
        client.field_manager = "kubectl-edit"
        await client.patch(DEPLOYMENTS, name, patch, rollout_env.namespace)
        await client.close()
        rollout_env.syncers.write(
            deployment__yaml=rollout_env.syncers.files["deployment.yaml"].replace(
                "replicas: 2", "replicas: 3"
            )
        )
        rolled = await rollout.ensure(rollout_env.binding)
        assert len(rolled.written) == 1
        deployment = await rollout_env.deployment("syncer")
        assert deployment["spec"]["replicas"] == 3
        assert deployment["spec"]["template"]["metadata"]["annotations"] == restarted
        assert {"name": "MORE", "value": "1"} in container(deployment)["env"]


async def test_deleted_objects_are_created_again(rollout_env: RolloutEnv) -> None:
    changed: list[Key] = []
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        await settled(rollout, rollout_env.binding)
        wanted = await rollout_env.state()
        rollout.on_change(changed.append)
        for resource in OBJECTS:
            for each in (await rollout_env.client.list(resource, rollout_env.namespace)).items:
                changed.clear()
                await rollout_env.client.delete(
                    resource, each.name, rollout_env.namespace, uid=each.uid
                )
                await until(
                    lambda: rollout_env.binding.key in changed, waiting_for="news of the deletion"
                )

                async def back(title: str = f"{resource.kind} {each.key}") -> bool:
                    return title in (await rollout.ensure(rollout_env.binding)).written

                await until(back)
        assert await rollout_env.state() == wanted


# Adopted


@pytest.mark.parametrize("owned", [True, False])
async def test_objects_of_the_earlier_implementation_are_adopted(
    rollout_env: RolloutEnv, owned: bool
) -> None:
    made = await rollout_env.create_go_objects(rollout_env.binding, owned=owned)
    service = await rollout_env.content(
        SERVICES, naming.proxier_service(rollout_env.binding.spec.cluster_id)
    )
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        assert (len(rolled.adopted), len(rolled.written)) == (3, 5)  # budgets are new
        assert await rollout_env.names() == sorted(made)
        await settled(rollout, rollout_env.binding)
        assert (await rollout.ensure(rollout_env.binding)).adopted == ()
    for component in ("syncer", "proxier"):
        deployment = await rollout_env.deployment(component)
        name = deployment["metadata"]["name"]
        assert deployment["metadata"]["uid"] == made[name].uid
        assert deployment["metadata"]["ownerReferences"][0]["uid"] == rollout_env.binding.uid
        labels = deployment["spec"]["selector"]["matchLabels"]
        assert labels["k8s-app"] == name  # unchanged, because selectors are immutable
        assert labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
        pod = deployment["spec"]["template"]["spec"]
        assert "volumes" not in pod
        assert "volumeMounts" not in container(deployment)
        assert container(deployment)["args"][0] == component
        assert "OF_GO" not in {each["name"] for each in container(deployment)["env"]}
        assert [each["name"] for each in pod["containers"]] == [component]
        assert deployment["spec"]["replicas"] == 2
    after = await rollout_env.content(SERVICES, service["metadata"]["name"])
    assert after["metadata"]["uid"] == service["metadata"]["uid"]
    assert after["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    assert [each["name"] for each in after["spec"]["ports"]] == ["kubelet", "vnode-metrics"]


# Left alone


async def test_objects_of_another_binding_are_not_written(rollout_env: RolloutEnv) -> None:
    changed: list[Key] = []
    other = await rollout_env.bind(rollout_env.binding.spec.cluster_id)
    async with rollout_env.running() as rollout:
        rollout.on_change(changed.append)
        await rollout.ensure(rollout_env.binding)
        before = await rollout_env.state()
        rolled = await rollout.ensure(other)
        assert rolled.written == ()
        assert rolled.syncer.phase is rolled.proxier.phase is ComponentPhase.FOREIGN
        assert f"belongs to ClusterBinding {rollout_env.binding.name}" in rolled.syncer.reason
        assert rolled.syncer.desired == 0
        assert await rollout.remove(other) == []
        assert await rollout_env.state() == before
        changed.clear()
        assert await rollout.remove(rollout_env.binding) == []
        await until(lambda: other.key in changed, waiting_for="news for the one who waits")

        async def taken() -> bool:
            return not (await rollout.ensure(other)).failed

        await until(taken)
        assert len(await rollout_env.names()) == 3


async def test_objects_of_an_unknown_owner_are_not_written(rollout_env: RolloutEnv) -> None:
    bodies = go_objects(rollout_env.binding, rollout_env.namespace, owned=False)
    bodies[0]["metadata"]["labels"] = {"app": "mine"}
    made = await rollout_env.client.create(DEPLOYMENTS, bodies[0])
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        assert rolled.syncer.phase is ComponentPhase.FOREIGN
        assert not rolled.proxier.failed
        assert await rollout.remove(rollout_env.binding) == []
    assert await rollout_env.names() == [made.name]
    assert (await rollout_env.deployment("syncer"))["spec"]["replicas"] == 1


async def test_an_invalid_template_changes_no_running_object(rollout_env: RolloutEnv) -> None:
    good = rollout_env.syncers.files["deployment.yaml"]
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        await settled(rollout, rollout_env.binding)
        before = await rollout_env.state()
        for bad, message in (
            ("{{if .TLSEnabled}}", "there is no variable .TLSEnabled"),
            (good.replace("{{.DeploymentName}}", "{{.Nmae}}"), "there is no variable .Nmae"),
            ("kind: [", "is not a YAML document"),
            (good.replace("replicas: 2", "replicas: many"), "replicas"),
            (None, "cannot read"),
        ):
            if bad is not None and bad.endswith("}}"):
                bad += "{{end}}"
            rollout_env.syncers.write(deployment__yaml=bad)
            rolled = await rollout.ensure(rollout_env.binding)
            assert rolled.syncer.failed
            assert message in rolled.syncer.reason
            assert rolled.syncer.desired == 2
            assert not rolled.proxier.failed
            assert await rollout_env.state() == before
        rollout_env.syncers.write(deployment__yaml=good)
        assert not (await rollout.ensure(rollout_env.binding)).failed
        assert await rollout_env.state() == before


async def test_an_object_that_the_server_refuses_is_reported(rollout_env: RolloutEnv) -> None:
    rollout_env.proxiers.write(proxierNamespace="there-is-no-such")
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
    assert rolled.proxier.phase is ComponentPhase.REFUSED
    assert "there-is-no-such" in rolled.proxier.reason
    assert not rolled.syncer.failed


async def test_a_selector_that_the_pods_cannot_match_is_reported(rollout_env: RolloutEnv) -> None:
    body = go_objects(rollout_env.binding, rollout_env.namespace)[0]
    body["spec"]["selector"]["matchLabels"][group.APP_NAME] = "other"
    body["spec"]["template"]["metadata"]["labels"][group.APP_NAME] = "other"
    await rollout_env.client.create(DEPLOYMENTS, body)
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
    assert rolled.syncer.phase is ComponentPhase.REFUSED
    assert "cannot change" in rolled.syncer.reason
    assert "OF_GO" in {
        each["name"] for each in container(await rollout_env.deployment("syncer"))["env"]
    }


# Faults


async def test_a_rollout_waits_for_a_lagging_cache(rollout_env: RolloutEnv) -> None:
    faults = Faults()
    async with rollout_env.running(faults) as rollout:
        faults.lag(0.5)
        assert len((await rollout.ensure(rollout_env.binding)).written) == 5
        assert (await rollout.ensure(rollout_env.binding)).written == ()
        assert faults.writes == 5


async def test_a_write_with_a_lost_response_is_repeated(rollout_env: RolloutEnv) -> None:
    faults = Faults()
    async with rollout_env.running(faults) as rollout:
        faults.lose_answer(times=2, when=writes)
        await rollout.ensure(rollout_env.binding)
        await settled(rollout, rollout_env.binding)
    assert len(await rollout_env.names()) == 3
    assert (await rollout_env.deployment("syncer"))["metadata"]["generation"] == 1


@pytest.mark.parametrize("begin", ["nothing", "made by go"])
async def test_a_crash_after_any_write_gives_the_same_objects_in_the_end(
    rollout_env: RolloutEnv, begin: str
) -> None:
    async def roll_out(faults: Faults) -> None:
        """Roll out until the end or the crash, and then again without faults."""
        cleaner, client = rollout_env.rollout()
        assert await cleaner.remove(rollout_env.binding) == []
        await client.close()
        if begin != "nothing":
            await rollout_env.create_go_objects(rollout_env.binding)
        rollout, client = rollout_env.rollout(faults)
        with suppress(Crashed):
            await rollout.ensure(rollout_env.binding)
        await client.close()
        rollout, client = rollout_env.rollout()
        await rollout.ensure(rollout_env.binding)
        assert (await rollout.ensure(rollout_env.binding)).written == ()
        await client.close()

    calm = Faults()
    await roll_out(calm)
    wanted = await rollout_env.state()
    assert calm.writes == (5 if begin == "nothing" else 8)
    for n in range(1, calm.writes + 1):
        faults = Faults()
        faults.crash_after_write(n)
        await roll_out(faults)
        assert faults.crashed
        assert await rollout_env.state() == wanted


# Scaled


AUTOSCALERS = resource_of(
    {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": ""},
    }
)


async def test_replicas_that_an_autoscaler_set_stay_and_others_are_reverted(
    rollout_env: RolloutEnv,
) -> None:
    scaled = proxier_files(Values(max_replicas={"proxier": 4}))
    text = scaled["horizontalpodautoscaler.yaml"]
    rollout_env.proxiers.write(horizontalpodautoscaler__yaml=text)
    name = naming.proxier_deployment(rollout_env.binding.spec.cluster_id)

    async def scale(replicas: int) -> None:
        patch = MergePatch({"spec": {"replicas": replicas}})
        await rollout_env.client.patch(
            DEPLOYMENTS, name, patch, rollout_env.namespace, subresource="scale"
        )

    async def replicas() -> int:
        return int((await rollout_env.deployment("proxier"))["spec"]["replicas"])

    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        (made,) = (await rollout_env.client.list(AUTOSCALERS, rollout_env.namespace)).items
        assert made.name == name
        await settled(rollout, rollout_env.binding)
        await scale(4)
        await settled(rollout, rollout_env.binding)
        assert await replicas() == 4
        for foreign in (0, 9):
            await scale(foreign)

            async def reverted() -> bool:
                with suppress(Conflict):
                    await rollout.ensure(rollout_env.binding)
                return await replicas() == 2

            await until(reverted)
        # Another change of the template keeps the number.
        await scale(3)
        deployment = rollout_env.proxiers.files["deployment.yaml"].replace("=info", "=debug")
        rollout_env.proxiers.write(deployment__yaml=deployment)

        async def changed() -> bool:
            with suppress(Conflict):  # the cache did not have the new number yet
                await rollout.ensure(rollout_env.binding)
            arguments = container(await rollout_env.deployment("proxier"))["args"]
            return "--zap-log-level=debug" in arguments

        await until(changed)
        assert await replicas() == 3

    # A later process, whose templates have no autoscaler, deletes it.
    rollout_env.proxiers.write(horizontalpodautoscaler__yaml=None)
    async with rollout_env.running() as rollout:
        await settled(rollout, rollout_env.binding)
        assert (await rollout_env.client.list(AUTOSCALERS, rollout_env.namespace)).items == []
        assert await replicas() == 2


async def test_an_autoscaler_is_deleted_with_its_binding(rollout_env: RolloutEnv) -> None:
    scaled = syncer_files(Values(shard_syncers=True, max_replicas={"syncer": 4}))
    text = scaled["horizontalpodautoscaler.yaml"]
    rollout_env.syncers.write(horizontalpodautoscaler__yaml=text)
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        assert len((await rollout_env.client.list(AUTOSCALERS, rollout_env.namespace)).items) == 1
    # The next process has not rendered the binding.
    async with rollout_env.running() as rollout:

        async def removed() -> bool:
            return not await rollout.remove(rollout_env.binding)

        await until(removed)
    assert (await rollout_env.client.list(AUTOSCALERS, rollout_env.namespace)).items == []
