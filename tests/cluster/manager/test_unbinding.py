"""Deletion on a real control plane: in order, in time, by force, and honest."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kubeocean.api.binding import ClusterBinding
from kubeocean.errors import Conflict, NotFound
from kubeocean.local.faults import Faults
from kubeocean.manager.rolloutviews import DEPLOYMENTS
from kubeocean.runtime.kinds import NODES, SERVICES
from kubeocean.runtime.outcomes import Done, Outcome
from kubeocean.runtime.transport import Request
from managing import SYSTEM, Harbour
from waiting import until

LONG_S = 3600
MANAGER = "system:serviceaccount:kubeocean-system:kubeocean-manager"


def admin(harbour: Harbour) -> bytes:
    return harbour.worker.kubeconfig.read_bytes()


async def test_the_syncer_clears_up_first_and_then_all_goes(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await harbour.becomes_ready()
        await harbour.lead(duration_s=LONG_S)
        await harbour.hold()
        await harbour.unbind()
        said = await harbour.says("Ready", "False", "Deleting")
        assert "its syncer takes back nodes and pods; the condition Drained says" in said
        await harbour.happened("WaitingSyncerCleanup")

        # A syncer that somebody takes away could not clear up: it comes back.
        name = harbour.deployment("syncer")
        gone = await harbour.above.get(DEPLOYMENTS, name, SYSTEM)
        await harbour.above.delete(DEPLOYMENTS, name, SYSTEM, uid=gone.uid)

        async def back() -> bool:
            return (await harbour.deployments()).get(name, gone.uid) != gone.uid

        await until(back)
        assert not await harbour.is_gone()

        await harbour.hold(hold=False)
        await until(harbour.is_gone)
        assert await harbour.deployments() == {}
        try:
            await harbour.above.get(SERVICES, f"{harbour.deployment('proxier')}-svc", SYSTEM)
        except NotFound:
            pass
        else:
            raise AssertionError("the Service is still there")
        for reason in ("Cleanup", "Deleted"):
            await harbour.happened(reason)
        assert not [e for e in await harbour.events() if e.reason == "CleanupUnconfirmed"]


async def test_a_worker_that_never_was_reached_holds_nothing_up(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind()
        await harbour.is_in("Failed")
        await harbour.unbind()
        await until(harbour.is_gone)
        await harbour.happened("Deleted")


async def test_a_syncer_that_never_comes_is_given_up_and_that_is_told(harbour: Harbour) -> None:
    other, since = harbour.neighbour(), harbour.home.audit.mark()
    async with harbour.managed():
        await other.bind(admin(harbour))
        await harbour.bind(admin(harbour))
        for each in (harbour, other):
            await until(each.are_rolled_out)
            await each.lend("n1")
        await harbour.hold()
        await harbour.unbind()
        event = await harbour.happened("CleanupUnconfirmed")
        assert "no syncer has been at work since" in event.message
        assert "1 virtual nodes were removed" in event.message
        assert f"kubeocean.io/finalizer-{harbour.cluster_id}" in event.message
        waited = await harbour.happened("WaitingSyncerCleanup")
        assert "given up at" in waited.message
        assert "annotation kubeocean.io/force-deletion=true" in waited.message
        await until(harbour.is_gone)
        assert await harbour.vnodes() == []
        assert await harbour.deployments() == {}
        assert await other.vnodes() == [f"vnode-{other.cluster_id}-n1"]
        assert len(await other.deployments()) == 2
    vnode = await harbour.above.get(NODES, f"vnode-{other.cluster_id}-n1")
    assert vnode.metadata.finalizers
    made = harbour.home.audit.requests(user=MANAGER, since=since)
    assert {"nodes", "certificatesigningrequests"} <= {each.resource for each in made}
    assert [each for each in made if each.code == 403] == []


async def test_a_right_that_is_missing_is_named_and_holds_nothing_up_for_ever(
    harbour: Harbour,
) -> None:
    def removes(request: Request) -> bool:
        return request.method == "DELETE" and "/deployments/" in request.path

    faults = Faults()
    faults.answer(403, times=LONG_S, when=removes, reason="Forbidden")
    async with harbour.managed(faults):
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.unbind()
        # For as long as there is hope the binding says what is missing, and then goes without.
        said = (await harbour.happened("CleanupFailed")).message
        assert f"could not delete deployments.apps {SYSTEM}/{harbour.deployment('syncer')}" in said
        told = await harbour.happened("Deleting")
        assert said in told.message
        await until(harbour.is_gone)
        assert said in (await harbour.happened("CleanupUnconfirmed")).message
        # Kubernetes collects them, for their owner is gone.
        assert len(await harbour.deployments()) == 2


async def test_force_does_not_wait_for_anybody(harbour: Harbour) -> None:
    since = harbour.home.audit.mark()
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.lead(duration_s=LONG_S)
        await harbour.hold()
        await harbour.lend("n1")
        await harbour.unbind()
        await harbour.says("Ready", "False", "Deleting")
        await harbour.change(annotations={"kubeocean.io/force-deletion": "true"})
        await until(harbour.is_gone)
        event = await harbour.happened("CleanupUnconfirmed")
        assert "the wait was ended by force" in event.message
        assert await harbour.vnodes() == []
        assert await harbour.deployments() == {}
        await harbour.happened("Deleted")
    # Who is gone is not let go of again.
    made = harbour.home.audit.requests(user=MANAGER, since=since)
    assert [each for each in made if (each.verb, each.code) == ("patch", 404)] == []


async def test_nodes_of_a_syncer_that_held_nothing_do_not_stay(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.lend("n1")
        await harbour.unbind()
        await until(harbour.is_gone)
        event = await harbour.happened("CleanupUnconfirmed")
        assert "no syncer held the binding" in event.message
        assert "1 virtual nodes were removed" in event.message
        assert await harbour.vnodes() == []


async def test_what_a_late_cache_still_shows_is_not_rolled_out_again(harbour: Harbour) -> None:
    async with harbour.managed() as manager:
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.says("SyncerReady", "False", "SyncerNotReady")
        await harbour.hold()
        await harbour.unbind()
        late = await harbour.binding()
        assert late.deleting
        await until(harbour.is_gone)
        await manager._bindings._unbinding.end(late)
        with pytest.raises(Conflict, match="is gone, and nothing is made for it"):
            await manager._bindings._rollout.ensure(late)
        assert await harbour.deployments() == {}


async def test_the_lease_of_an_election_goes_with_its_binding(harbour: Harbour) -> None:
    other = harbour.neighbour()
    async with harbour.managed():
        for each in (harbour, other):
            await each.bind(admin(harbour))
            await until(each.are_rolled_out)
            await each.lead(duration_s=LONG_S)
            await each.stop_leading()
        await harbour.unbind()
        await until(harbour.is_gone)
        assert not await harbour.has_lease()
        assert await other.has_lease()


async def test_a_duplicate_takes_no_lease_with_it(harbour: Harbour) -> None:
    twin = harbour.neighbour()
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.lead(duration_s=LONG_S)
        await harbour.stop_leading()
        await twin.bind(admin(harbour), clusterID=harbour.cluster_id)
        await twin.says("Ready", "False", "ValidationFailed")
        await twin.unbind()
        await until(twin.is_gone)
        assert await harbour.has_lease()


async def test_a_lease_that_somebody_holds_is_left_to_him(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.lead(duration_s=LONG_S)
        await harbour.unbind()
        await until(harbour.is_gone)
        assert await harbour.has_lease()


async def test_nobody_asks_the_worker_of_a_binding_that_went_at_once(harbour: Harbour) -> None:
    async with harbour.managed() as manager:
        binding = await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        bindings = manager._bindings
        assert binding.uid in bindings.pulses._pulses
        await harbour.unbind()
        await until(harbour.is_gone)
        await until(lambda: bindings.informer.get(binding.key) is None)
        # A turn that began when it was new, and had to wait for its first write.
        await bindings._turn(binding)
        assert bindings.pulses._pulses == {}


async def test_who_comes_in_the_place_of_another_has_its_own_pulse(harbour: Harbour) -> None:
    async with harbour.managed() as manager:
        old = await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        bindings = manager._bindings
        new = msgspec.structs.replace(
            old, metadata=msgspec.structs.replace(old.metadata, uid="another")
        )
        # What a listing shows after a watch was away for long.
        bindings._changed(old, new)
        assert old.uid not in bindings.pulses._pulses


async def test_no_figures_stay_of_a_binding_that_goes_during_its_turn(
    harbour: Harbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harbour.managed() as manager:
        binding = await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        bindings = manager._bindings
        turn, ours = bindings._turn, asyncio.current_task()

        async def goes(late: ClusterBinding) -> Outcome:
            if asyncio.current_task() is not ours:
                return await turn(late)
            await harbour.unbind()
            await until(lambda: bindings.informer.get(binding.key) is None)
            return Done()

        monkeypatch.setattr(bindings, "_turn", goes)
        await bindings.reconcile(binding.key)
        told = [each for family in bindings.figures._total.collect() for each in family.samples]
        assert harbour.name not in {each.labels["clusterbinding"] for each in told}
