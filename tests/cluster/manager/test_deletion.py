"""Deletion on a real control plane: in order, in time, by force, and honest."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kubeocean.api.bindings import ClusterBinding
from kubeocean.errors import Conflict, NotFound
from kubeocean.runtime.controller import Done, Outcome
from kubeocean.runtime.kinds import DEPLOYMENTS, NODES, SERVICES
from kubeocean.runtime.transport import Request
from support.faults import Faults
from support.manager_env import SYSTEM, ManagerEnv
from support.wait import until

LONG_S = 3600
MANAGER = "system:serviceaccount:kubeocean-system:kubeocean-manager"


def admin(env: ManagerEnv) -> bytes:
    return env.worker.kubeconfig.read_bytes()


async def test_the_syncer_cleans_up_before_the_objects_are_deleted(env: ManagerEnv) -> None:
    async with env.managed():
        await env.bind(admin(env))
        await env.make_ready()
        await env.lead(duration_s=LONG_S)
        await env.set_syncer_finalizer()
        await env.unbind()
        message = await env.wait_for_condition("Ready", "False", "Deleting")
        assert "its syncer deletes nodes and pods; the condition Drained lists" in message
        await env.wait_for_event("WaitingSyncerCleanup")

        # A deleted syncer is created again, because it has to clean up.
        name = env.deployment("syncer")
        gone = await env.computing_client.get(DEPLOYMENTS, name, SYSTEM)
        await env.computing_client.delete(DEPLOYMENTS, name, SYSTEM, uid=gone.uid)

        async def back() -> bool:
            return (await env.deployments()).get(name, gone.uid) != gone.uid

        await until(back)
        assert not await env.is_gone()

        await env.set_syncer_finalizer(present=False)
        await until(env.is_gone)
        assert await env.deployments() == {}
        try:
            await env.computing_client.get(SERVICES, f"{env.deployment('proxier')}-svc", SYSTEM)
        except NotFound:
            pass
        else:
            raise AssertionError("the Service is still there")
        for reason in ("Cleanup", "Deleted"):
            await env.wait_for_event(reason)
        assert not [e for e in await env.events() if e.reason == "CleanupUnconfirmed"]


async def test_a_worker_that_was_never_reached_does_not_block_the_deletion(
    env: ManagerEnv,
) -> None:
    async with env.managed():
        await env.bind()
        await env.wait_for_phase("Failed")
        await env.unbind()
        await until(env.is_gone)
        await env.wait_for_event("Deleted")


async def test_a_deletion_without_a_syncer_ends_at_the_deadline_and_is_reported(
    env: ManagerEnv,
) -> None:
    other, since = env.other_binding(), env.computing_cluster.audit.mark()
    async with env.managed():
        await other.bind(admin(env))
        await env.bind(admin(env))
        for each in (env, other):
            await until(each.is_rolled_out)
            await each.create_virtual_node("n1")
        await env.set_syncer_finalizer()
        await env.unbind()
        event = await env.wait_for_event("CleanupUnconfirmed")
        assert "no syncer has led since" in event.message
        assert "1 virtual nodes were deleted" in event.message
        assert f"kubeocean.io/finalizer-{env.cluster_id}" in event.message
        waited = await env.wait_for_event("WaitingSyncerCleanup")
        assert "the wait ends at" in waited.message
        assert "annotation kubeocean.io/force-deletion=true" in waited.message
        await until(env.is_gone)
        assert await env.vnodes() == []
        assert await env.deployments() == {}
        assert await other.vnodes() == [f"vnode-{other.cluster_id}-n1"]
        assert len(await other.deployments()) == 2
    vnode = await env.computing_client.get(NODES, f"vnode-{other.cluster_id}-n1")
    assert vnode.metadata.finalizers
    made = env.computing_cluster.audit.requests(user=MANAGER, since=since)
    assert {"nodes", "certificatesigningrequests"} <= {each.resource for each in made}
    assert [each for each in made if each.code == 403] == []


async def test_a_missing_permission_is_named_and_does_not_block_the_deletion_for_ever(
    env: ManagerEnv,
) -> None:
    def removes(request: Request) -> bool:
        return request.method == "DELETE" and "/deployments/" in request.path

    faults = Faults()
    faults.answer(403, times=LONG_S, when=removes, reason="Forbidden")
    async with env.managed(faults):
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.unbind()
        # Events name the missing right until the deadline; then the binding is deleted.
        message = (await env.wait_for_event("CleanupFailed")).message
        assert f"could not delete deployments.apps {SYSTEM}/{env.deployment('syncer')}" in message
        event = await env.wait_for_event("Deleting")
        assert message in event.message
        await until(env.is_gone)
        assert message in (await env.wait_for_event("CleanupUnconfirmed")).message
        # Kubernetes garbage-collects the objects, because their owner is gone.
        assert len(await env.deployments()) == 2


async def test_a_forced_deletion_does_not_wait(env: ManagerEnv) -> None:
    since = env.computing_cluster.audit.mark()
    async with env.managed():
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.lead(duration_s=LONG_S)
        await env.set_syncer_finalizer()
        await env.create_virtual_node("n1")
        await env.unbind()
        await env.wait_for_condition("Ready", "False", "Deleting")
        await env.change(annotations={"kubeocean.io/force-deletion": "true"})
        await until(env.is_gone)
        event = await env.wait_for_event("CleanupUnconfirmed")
        assert "the wait was ended by force" in event.message
        assert await env.vnodes() == []
        assert await env.deployments() == {}
        await env.wait_for_event("Deleted")
    # A binding that is gone is not finalized again.
    made = env.computing_cluster.audit.requests(user=MANAGER, since=since)
    assert [each for each in made if (each.verb, each.code) == ("patch", 404)] == []


async def test_virtual_nodes_without_a_syncers_finalizer_are_deleted(env: ManagerEnv) -> None:
    async with env.managed():
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.create_virtual_node("n1")
        await env.unbind()
        await until(env.is_gone)
        event = await env.wait_for_event("CleanupUnconfirmed")
        assert "no syncer has deleted the virtual nodes" in event.message
        assert "1 virtual nodes were deleted" in event.message
        assert await env.vnodes() == []


async def test_a_deleted_binding_in_a_lagging_cache_is_not_rolled_out_again(
    env: ManagerEnv,
) -> None:
    async with env.managed() as manager:
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.wait_for_condition("SyncerReady", "False", "SyncerNotReady")
        await env.set_syncer_finalizer()
        await env.unbind()
        late = await env.binding()
        assert late.deleting
        await until(env.is_gone)
        await manager._bindings._deletion.reconcile(late)
        with pytest.raises(Conflict, match="it was deleted"):
            await manager._bindings._rollout.ensure(late)
        assert await env.deployments() == {}


async def test_the_lease_of_an_election_is_deleted_with_its_binding(env: ManagerEnv) -> None:
    other = env.other_binding()
    async with env.managed():
        for each in (env, other):
            await each.bind(admin(env))
            await until(each.is_rolled_out)
            await each.lead(duration_s=LONG_S)
            await each.stop_leading()
        await env.unbind()
        await until(env.is_gone)
        assert not await env.has_lease()
        assert await other.has_lease()


async def test_the_deletion_of_a_duplicate_deletes_no_lease(env: ManagerEnv) -> None:
    twin = env.other_binding()
    async with env.managed():
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.lead(duration_s=LONG_S)
        await env.stop_leading()
        await twin.bind(admin(env), clusterID=env.cluster_id)
        await twin.wait_for_condition("Ready", "False", "ValidationFailed")
        await twin.unbind()
        await until(twin.is_gone)
        assert await env.has_lease()


async def test_a_lease_with_a_live_holder_is_not_deleted(env: ManagerEnv) -> None:
    async with env.managed():
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.lead(duration_s=LONG_S)
        await env.unbind()
        await until(env.is_gone)
        assert await env.has_lease()


async def test_the_worker_of_a_binding_that_was_deleted_at_once_is_not_probed(
    env: ManagerEnv,
) -> None:
    async with env.managed() as manager:
        binding = await env.bind(admin(env))
        await until(env.is_rolled_out)
        bindings = manager._bindings
        assert binding.uid in bindings.probes._probes
        await env.unbind()
        await until(env.is_gone)
        await until(lambda: bindings.informer.get(binding.key) is None)
        # A turn that began when it was new, and had to wait for its first write.
        await bindings._reconcile(binding)
        assert bindings.probes._probes == {}


async def test_a_new_binding_of_the_same_name_has_a_probe_of_its_own(env: ManagerEnv) -> None:
    async with env.managed() as manager:
        old = await env.bind(admin(env))
        await until(env.is_rolled_out)
        bindings = manager._bindings
        new = msgspec.structs.replace(
            old, metadata=msgspec.structs.replace(old.metadata, uid="another")
        )
        # The change that a new listing shows after a long interruption of the watch.
        bindings._changed(old, new)
        assert old.uid not in bindings.probes._probes


async def test_metrics_of_a_binding_that_is_deleted_during_its_reconcile_are_removed(
    env: ManagerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with env.managed() as manager:
        binding = await env.bind(admin(env))
        await until(env.is_rolled_out)
        bindings = manager._bindings
        reconcile, ours = bindings._reconcile, asyncio.current_task()

        async def goes(late: ClusterBinding) -> Outcome:
            if asyncio.current_task() is not ours:
                return await reconcile(late)
            await env.unbind()
            await until(lambda: bindings.informer.get(binding.key) is None)
            return Done()

        monkeypatch.setattr(bindings, "_reconcile", goes)
        await bindings.reconcile(binding.key)
        samples = [each for family in bindings.metrics._total.collect() for each in family.samples]
        assert env.name not in {each.labels["clusterbinding"] for each in samples}
