"""A Work from its creation to its deletion, and the objects that it places."""

from __future__ import annotations

from functools import partial

from kubeocean.api.fleet.names import (
    ANNOTATION_DELETE_PROPAGATION,
    ANNOTATION_LAST_APPLIED,
    ANNOTATION_PARENT_SNAPSHOT,
    ANNOTATION_SPEC_HASH,
    FIELD_MANAGER,
    FINALIZER_WORK,
    LABEL_PARENT_BINDING,
)
from kubeocean.api.fleet.strategies import DeletePropagationPolicy
from kubeocean.api.fleet.works import APPLIED_WORKS, WORKS
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    SERVICES,
)
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.applier_env import ApplierEnv, namespace_of
from support.wait import until

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
RBAC = "rbac.authorization.k8s.io"
FOREIGN = "example.com/hold"


async def test_a_config_map_follows_its_work(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="one"))
        await env.until_available()
        placed, owner, work = await env.placed(), await env.applied_work(), await env.work()
        assert placed and owner and work
        assert placed["data"] == {"k": "one"}
        metadata = placed["metadata"]
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "placement.kubernetes-fleet.io/v1beta1",
                "kind": "AppliedWork",
                "name": env.name(),
                "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
        ]
        assert set(metadata["annotations"]) == {ANNOTATION_SPEC_HASH, ANNOTATION_LAST_APPLIED}
        assert "labels" not in metadata
        assert {entry["manager"] for entry in metadata["managedFields"]} == {FIELD_MANAGER}
        assert work["metadata"]["finalizers"] == [FINALIZER_WORK]
        assert work["metadata"]["generation"] == 1
        assert owner["spec"] == {"workName": env.name(), "workNamespace": env.hub_namespace}
        identifier = {
            "ordinal": 0,
            "version": "v1",
            "kind": "ConfigMap",
            "resource": "configmaps",
            "namespace": env.namespace,
            "name": "settings",
        }
        assert owner["status"] == {"appliedResources": [{**identifier, "uid": metadata["uid"]}]}
        assert await env.conditions() == {
            "Applied": ("True", "AllManifestsApplied"),
            "Available": ("True", "AllManifestsAvailable"),
        }
        [entry] = await env.entries()
        assert entry["identifier"] == identifier
        assert [(c["type"], c["reason"]) for c in entry["conditions"]] == [
            ("Applied", "Applied"),
            ("Available", "Available"),
        ]

        await env.put_work(env.config_map(k="two"))

        async def updated() -> bool:
            placed = await env.placed()
            assert placed and placed["data"] == {"k": "two"}
            return bool(await env.conditions())

        await until(updated)
        await run.is_quiet()

        await env.delete_work()
        await env.until_gone(env.work)
        assert await env.placed() is None
        assert await env.applied_work() is None


def application(env: ApplierEnv) -> tuple[list[Json], Resource[Untyped]]:
    """Return objects that depend on each other, in the wrong order, and the resource of the custom
    one."""
    group, namespace = f"g{env.id}.example.com", f"app-{env.id}"
    meta = {"name": "app", "namespace": namespace}
    labels = {"app": "app"}
    widget = Resource(group, "v1", "widgets", "Widget", True, Untyped)
    pod = {"containers": [{"name": "c", "image": "app:1"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return [
        {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 3}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "app"},
            "subjects": [{"kind": "ServiceAccount", "name": "app", "namespace": namespace}],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"widgets.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [version],
            },
        },
        namespace_of(namespace),
    ], widget


async def test_objects_that_depend_on_each_other_are_placed_by_one_work(env: ApplierEnv) -> None:
    manifests, widgets = application(env)
    async with env.running() as run:
        await env.put_work(*manifests)

        async def placed() -> bool:
            assert await env.manifest_reasons() == ["Applied"] * len(manifests)
            conditions = await env.conditions()
            assert conditions["Applied"] == ("True", "AllManifestsApplied")
            assert conditions["Available"] == ("True", "WorkNotTrackable")
            return True

        await until(placed)
        widget = await env.read(env.member, widgets, "app", f"app-{env.id}")
        assert widget
        assert widget["spec"] == {"size": 3}
        entries = await env.entries()
        assert entries[0]["conditions"][1]["reason"] == "NotTrackable"
        assert entries[1]["conditions"][1]["reason"] == "Available"
        deployment = await env.read(env.member, DEPLOYMENTS, "app", f"app-{env.id}")
        assert deployment
        assert deployment["metadata"]["generation"] == 1
        await run.is_quiet()

        # A workload that is not available yet, and becomes available by its status alone
        await env.member.patch(
            DEPLOYMENTS,
            "app",
            MergePatch({"status": {"availableReplicas": 0, "observedGeneration": 0}}),
            f"app-{env.id}",
            subresource="status",
        )
        await env.until_available()
        await env.delete_work()
        await env.until_gone(env.work)
        assert await env.read(env.member, SERVICES, "app", f"app-{env.id}") is None
        name = f"widgets.{widgets.group}"
        assert await env.read(env.member, CUSTOM_RESOURCE_DEFINITIONS, name) is None


async def test_a_kind_that_appears_later_is_placed_then(env: ApplierEnv) -> None:
    manifests, widgets = application(env)
    widget, definition = manifests[0], manifests[6]
    widget["metadata"]["namespace"] = env.namespace
    async with env.running():
        await env.put_work(widget, env.config_map())
        [entry, _] = await env.until_reasons("DecodingErred", "Applied")
        assert entry["identifier"] == {
            "ordinal": 0,
            "group": widgets.group,
            "version": "v1",
            "kind": "Widget",
            "namespace": env.namespace,
            "name": "app",
        }
        await env.member.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        await env.until_reasons("Applied", "Applied")
        assert await env.read(env.member, widgets, "app", env.namespace)


async def test_objects_that_are_not_named_any_more_are_removed(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map("a"), env.config_map("b"), env.config_map("shared"))
        await env.until_available()
        # One of the objects has another owner as well: only our reference is removed
        other = await env.another_owner()
        shared = await env.placed("shared")
        assert shared
        references = [*shared["metadata"]["ownerReferences"], other]
        await env.edit({"metadata": {"ownerReferences": references}}, "shared")
        await env.put_work(env.config_map("b"))
        await env.until_gone(lambda: env.placed("a"))

        async def released() -> bool:
            shared = await env.placed("shared")
            assert shared and shared["metadata"]["ownerReferences"] == [other]
            owner = await env.applied_work()
            assert owner
            names = [each["name"] for each in owner["status"]["appliedResources"]]
            assert names == ["b"]
            return True

        await until(released)
        assert await env.placed("b")
        await run.is_quiet()


async def test_a_work_without_manifests_is_available(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work()
        await env.until_available()
        assert await env.conditions() == {
            "Applied": ("True", "AllManifestsApplied"),
            "Available": ("True", "AllManifestsAvailable"),
        }
        await run.is_quiet()


async def test_a_work_waits_for_objects_that_others_hold(env: ApplierEnv) -> None:
    manifest = env.config_map()
    manifest["metadata"]["finalizers"] = [FOREIGN]
    async with env.running() as run:
        await env.put_work(manifest)
        await env.until_available()
        await env.delete_work()

        async def waiting() -> bool:
            objects = await env.work(), await env.applied_work(), await env.placed()
            assert all(each and each["metadata"].get("deletionTimestamp") for each in objects)
            return True

        await until(waiting)
        await run.is_quiet()
        await waiting()
        await env.edit({"metadata": {"finalizers": None}})
        await env.until_gone(env.work)
        assert await env.applied_work() is None
        assert await env.placed() is None


async def test_objects_that_others_hold_stop_a_work_for_a_limited_time(env: ApplierEnv) -> None:
    manifest = env.config_map()
    manifest["metadata"]["finalizers"] = [FOREIGN]
    async with env.running(deletion_wait_s=1.0):
        await env.put_work(manifest)
        await env.until_available()
        await env.delete_work()
        await env.until_gone(env.work)
        placed = await env.placed()
        assert placed
        assert placed["metadata"]["deletionTimestamp"]
        await env.edit({"metadata": {"finalizers": None}})


async def test_an_abandoned_work_leaves_its_objects(env: ApplierEnv) -> None:
    async with env.running():
        await env.put_work(env.config_map(k="v"))
        await env.until_available()
        annotations = {ANNOTATION_DELETE_PROPAGATION: DeletePropagationPolicy.ABANDON}
        await env.hub.patch(
            WORKS,
            env.name(),
            MergePatch({"metadata": {"annotations": annotations}}),
            env.hub_namespace,
        )
        await env.delete_work()
        await env.until_gone(env.work)
        assert await env.applied_work() is None
        placed = await env.placed()
        assert placed
        assert "ownerReferences" not in placed["metadata"]
        assert "deletionTimestamp" not in placed["metadata"]


async def test_a_member_that_leaves_keeps_its_objects_and_takes_them_over_again(
    env: ApplierEnv,
) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="v"))
        await env.put_work(env.config_map("other"), name="other")
        await env.until_available()
        await env.until_available("other")
        before = await env.placed()
        await run.applier.stop()
        await run.applier.release_works()
        for name in ("work", "other"):
            work = await env.work(name)
            assert work
            assert "finalizers" not in work["metadata"]
            await env.delete_work(name)
            assert await env.work(name) is None
        assert await env.placed() == before
        assert await env.applied_work()
    # The applier starts again, and the object is in another Work: the first AppliedWork is stale
    async with env.running() as run:
        await env.put_work(env.config_map(k="v"), name="renamed")
        await env.until_available("renamed")
        placed, owner = await env.placed(), await env.applied_work("renamed")
        assert placed and before and owner
        assert placed["metadata"]["uid"] == before["metadata"]["uid"]
        references = placed["metadata"]["ownerReferences"]
        assert [each["uid"] for each in references] == [owner["metadata"]["uid"]]
        await run.is_quiet()


async def test_an_applied_work_that_a_user_deletes_is_created_again(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="v"))
        await env.until_available()
        before = await env.applied_work()
        assert before
        await env.member.delete(
            APPLIED_WORKS, env.name(), uid=before["metadata"]["uid"], propagation="Foreground"
        )

        async def again() -> bool:
            owner, placed = await env.applied_work(), await env.placed()
            assert owner and placed
            assert owner["metadata"]["uid"] != before["metadata"]["uid"]
            [reference] = placed["metadata"]["ownerReferences"]
            assert reference["uid"] == owner["metadata"]["uid"]
            return bool(await env.conditions())

        await until(again)
        await env.until_available()
        await run.is_quiet()


async def test_a_status_that_a_user_damages_is_written_again(env: ApplierEnv) -> None:
    async with env.running() as run:
        await env.put_work(env.config_map(k="v"))
        await env.until_available()
        before = await env.work()
        assert before
        for damage in ({"status": None}, {"status": {"conditions": [], "manifestConditions": []}}):
            await env.hub.patch(
                WORKS, env.name(), MergePatch(damage), env.hub_namespace, subresource="status"
            )
            await env.until_reasons("Applied")
        await run.is_quiet()


async def test_a_namespace_that_is_missing_is_waited_for(env: ApplierEnv) -> None:
    name = f"late-{env.id}"
    manifest = env.config_map()
    manifest["metadata"]["namespace"] = name
    async with env.running():
        await env.put_work(manifest)
        [entry] = await env.until_reasons("ManifestApplyFailed")
        message = entry["conditions"][0]["message"]
        assert message.startswith("Failed to apply the manifest (error: ")
        assert "not found" in message
        await env.member.create(NAMESPACES, namespace_of(name))
        await env.until_reasons("Applied")


async def test_a_namespace_that_a_user_deletes_is_created_again_with_its_objects(
    env: ApplierEnv,
) -> None:
    name = f"whole-{env.id}"
    manifest = env.config_map(k="v")
    manifest["metadata"]["namespace"] = name
    async with env.running() as run:
        await env.put_work(manifest, namespace_of(name, team="a"))
        await env.until_available()
        before = await env.read(env.member, NAMESPACES, name)
        assert before
        await env.member.delete(NAMESPACES, name, uid=before["metadata"]["uid"])

        async def is_back() -> bool:
            namespace = await env.read(env.member, NAMESPACES, name)
            assert namespace and namespace["metadata"]["uid"] != before["metadata"]["uid"]
            placed = await env.read(env.member, CONFIG_MAPS, "settings", name)
            assert placed and placed["data"] == {"k": "v"}
            return True

        await until(is_back)
        await env.until_available()
        await run.is_quiet()


def of_release(number: int) -> Json:
    """Return the metadata of a binding's Work, as a hub writes it for a release."""
    return {
        "labels": {LABEL_PARENT_BINDING: "app-a-00000000"},
        "annotations": {ANNOTATION_PARENT_SNAPSHOT: f"app-{number}-snapshot"},
    }


async def put(env: ApplierEnv, name: str, release: int, *objects: str) -> None:
    """Create or update a Work of a binding in one request, with these ConfigMaps."""
    manifests = [env.config_map(each, k=each) for each in objects]
    metadata = of_release(release)
    if await env.work(name) is None:
        await env.put_work(*manifests, name=name, metadata=metadata)
        return
    change = {"metadata": metadata, "spec": {"workload": {"manifests": manifests}}}
    await env.hub.patch(WORKS, env.name(name), MergePatch(change), env.hub_namespace)


async def owner_and_uid(env: ApplierEnv, name: str) -> tuple[str, str]:
    placed = await env.placed(name)
    assert placed is not None, name
    [owner] = placed["metadata"]["ownerReferences"]
    return owner["name"], placed["metadata"]["uid"]


async def test_an_object_that_moves_to_another_work_of_its_binding_stays(env: ApplierEnv) -> None:
    """A hub divides objects differently after one was added; a deleted volume loses its data."""
    async with env.running():
        await put(env, "first", 0, "a", "b")
        await put(env, "second", 0, "c", "gone")
        for name in ("first", "second"):
            await env.until_available(name)
        uids = {name: (await owner_and_uid(env, name))[1] for name in "abc"}

        await put(env, "first", 1, "a", "new")
        await until(lambda: env.placed("new"))
        await put(env, "second", 1, "b", "c")

        async def moved() -> bool:
            return (await owner_and_uid(env, "b")) == (env.name("second"), uids["b"])

        await until(moved)
        await env.until_available("second")
        await env.until_gone(partial(env.placed, "gone"))

        await put(env, "first", 2, "a", "b", "c")
        await env.delete_work("second")
        await env.until_gone(partial(env.work, "second"))
        await env.until_available("first")
        for name, uid in uids.items():
            assert await owner_and_uid(env, name) == (env.name("first"), uid)
        await env.delete_work("first")
        await env.until_gone(partial(env.placed, "a"))
