"""A deleted binding is gone in bounded time, also if its nodes, pods and lists are blocked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import EVENTS, NODES, PODS
from kubeocean.runtime.transport import Request
from kubeocean.syncer.cleanup import binding_deletion, deletion_progress
from support.binding_env import BindingEnv
from support.controller_env import quiet
from support.faults import Faults, SkewedClock
from support.wait import until

ALWAYS = 1 << 60
HASTE = 10.0
HOLD = "example.com/hold"  # a finalizer of another program


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions are given up within seconds."""
    for name, seconds in (("GIVE_UP_S", 8.0), ("ABANDON_S", 2.0), ("CLEANUP_S", 4.0)):
        monkeypatch.setattr(deletion_progress, name, seconds)


@pytest.fixture(autouse=True)
async def no_other_policies(binding_env: BindingEnv) -> None:
    """Earlier tests leave no policies in the worker: a syncer reports that their bindings are
    gone, which is a write."""
    release = MergePatch({"metadata": {"finalizers": None}})
    for policy in (await binding_env.worker_api.list(RESOURCE_LEASING_POLICIES)).items:
        with suppress(NotFound):
            await binding_env.worker_api.patch(RESOURCE_LEASING_POLICIES, policy.name, release)
            await binding_env.worker_api.delete(
                RESOURCE_LEASING_POLICIES, policy.name, uid=policy.uid
            )


async def test_a_foreign_finalizer_on_a_node_does_not_hold_up_the_deletion_of_a_binding(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend(forceReclaim=True, forceReclaimDeadlineSeconds=1)
    await binding_env.add_node("a")

    async def set_finalizers(vnode: str, *finalizers: str) -> None:
        patch = MergePatch({"metadata": {"finalizers": list(finalizers)}})
        await binding_env.computing_api.patch(NODES, vnode, patch)

    computing_api, worker_api = Faults(), Faults()
    async with binding_env.syncing(computing_api=computing_api.wrap, worker_api=worker_api.wrap):
        (vnode,) = await until(binding_env.vnodes)
        await set_finalizers(vnode.name, *(vnode.metadata.finalizers or ()), HOLD)
        await binding_env.unbind()
        await until(binding_env.is_unbound)
        await until(lambda: reports_unconfirmed(binding_env))
        (held,) = await binding_env.vnodes()
        assert held.deleting
        assert held.metadata.finalizers == (HOLD,)
        await quiet(computing_api, worker_api)
        await set_finalizers(vnode.name)


def lists(path: str) -> Callable[[Request], bool]:
    return lambda request: not request.writes and request.path.endswith(path)


def patches_node(request: Request) -> bool:
    return request.method == "PATCH" and request.path.startswith("/api/v1/nodes/")


async def lent(binding_env: BindingEnv) -> None:
    """Lend a node, with a syncer that has stopped since."""
    await binding_env.bind()
    await binding_env.lend(forceReclaim=True, forceReclaimDeadlineSeconds=1)
    await binding_env.add_node("a")
    async with binding_env.syncing():
        await until(binding_env.vnodes)
        await until(lambda: has_label(binding_env, True))


async def has_label(binding_env: BindingEnv, expected: bool) -> bool:
    """Whether it is as expected that the worker's node has the label of its policy, or has not."""
    node = await binding_env.worker_api.get(NODES, f"{binding_env.name}-a")
    return ("kubeocean.io/policy-applied" in node.labels) is expected


async def reports_unconfirmed(binding_env: BindingEnv, *names: str) -> bool:
    """Whether an event of the binding reports an unconfirmed cleanup and has these names."""
    fields = f"involvedObject.name={binding_env.name},reason=CleanupUnconfirmed"
    events = (await binding_env.computing_api.list(EVENTS, "default", fields=fields)).items
    return any(all(name in event.message for name in names) for event in events)


@pytest.mark.parametrize("path", ["/resourceleasingpolicies", "/namespaces/kubeocean-worker/pods"])
async def test_caches_of_the_worker_that_never_sync_do_not_hold_up_the_deletion_of_a_binding(
    binding_env: BindingEnv, path: str
) -> None:
    """The rights of the credential, or the kind, were removed before the binding."""
    await lent(binding_env)
    faults, computing_api = Faults(), Faults()
    faults.answer(403, times=ALWAYS, when=lists(path))
    await binding_env.unbind()
    async with binding_env.syncing(
        computing_api=computing_api.wrap, worker_api=faults.wrap, clock=SkewedClock(rate=HASTE)
    ):
        await until(binding_env.is_unbound)
        assert await binding_env.vnodes() == []
        await until(lambda: reports_unconfirmed(binding_env))
        await quiet(computing_api, faults)


async def test_node_patches_that_fail_do_not_hold_up_the_deletion_of_a_binding(
    binding_env: BindingEnv,
) -> None:
    await lent(binding_env)
    faults, computing_api = Faults(), Faults()
    faults.answer(503, times=ALWAYS, when=patches_node)
    async with binding_env.syncing(
        computing_api=computing_api.wrap, worker_api=faults.wrap, clock=SkewedClock(rate=HASTE)
    ) as syncer:
        await until(lambda: syncer.ready)
        await binding_env.unbind()
        await until(binding_env.is_unbound)
        assert await binding_env.vnodes() == []
        assert await has_label(binding_env, True)
        await until(lambda: reports_unconfirmed(binding_env, f"{binding_env.name}-a"))
        faults.heal()
        await until(lambda: has_label(binding_env, False))
        await quiet(computing_api, faults)


async def test_a_foreign_finalizer_on_a_pod_does_not_hold_up_the_deletion_of_a_binding(
    binding_env: BindingEnv, home: str
) -> None:
    await lent(binding_env)
    computing_api, worker_api = Faults(), Faults()
    async with binding_env.syncing(
        computing_api=computing_api.wrap, worker_api=worker_api.wrap, clock=SkewedClock(rate=HASTE)
    ):
        (vnode,) = await binding_env.vnodes()
        pod = await binding_env.create_bound_pod(home, "held", vnode.name)
        patch = MergePatch({"metadata": {"finalizers": [HOLD]}})
        await binding_env.computing_api.patch(PODS, pod.name, patch, home)
        await binding_env.unbind()
        await until(binding_env.is_unbound)
        assert await binding_env.vnodes() == []
        held = await binding_env.computing_api.get(PODS, pod.name, home)
        assert held.deleting
        assert held.metadata.finalizers == (HOLD,)
        await until(lambda: reports_unconfirmed(binding_env, f"{home}/held"))
        await quiet(computing_api, worker_api)
    release = MergePatch({"metadata": {"finalizers": None}})
    await binding_env.computing_api.patch(PODS, pod.name, release, home)


async def test_a_list_that_cannot_be_read_does_not_hold_up_the_deletion_of_a_binding(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("a")
    async with binding_env.syncing():
        await until(binding_env.vnodes)
    binding = await binding_env.binding()
    finalizers = [*(binding.metadata.finalizers or ()), HOLD]
    patch = MergePatch({"metadata": {"finalizers": finalizers}})
    await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, patch)
    await binding_env.unbind()

    def of_proxiers(request: Request) -> bool:
        return request.path == "/api/v1/namespaces/kubeocean-system/pods"

    faults = Faults()
    faults.answer(403, times=1_000_000, when=of_proxiers)
    async with binding_env.syncing(computing_api=faults.wrap):

        async def only_held() -> bool:
            return (await binding_env.binding()).metadata.finalizers == (HOLD,)

        await until(only_held)
        status, reason, message = await binding_env.condition("Drained")
        assert (status, reason) == ("Unknown", "Unconfirmed")
        assert "could not list /api/v1/namespaces/kubeocean-system/pods" in message
        assert await binding_env.vnodes() == []
    patch = MergePatch({"metadata": {"finalizers": None}})
    await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, patch)


async def set_membership(binding_env: BindingEnv, status: str, reason: str) -> None:
    """Write the condition FleetMember as a hub does."""
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "by the hub"}
    condition = {"type": "FleetMember", "status": status, "reason": reason, **since}
    patch = MergePatch({"status": {"conditions": [condition]}})
    await binding_env.computing_api.patch(
        CLUSTER_BINDINGS, binding_env.name, patch, subresource="status"
    )


async def test_a_deletion_waits_until_the_worker_has_left_the_fleet(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    async with binding_env.syncing():

        async def is_connected() -> bool:
            return (await binding_env.condition("Connected"))[0] == "True"

        await until(is_connected)
        await set_membership(binding_env, "Unknown", "Leaving")
        await binding_env.unbind()

        async def waits() -> bool:
            message = (await binding_env.condition("Drained"))[2]
            return message == "Still there: the worker's membership in the fleet"

        await until(waits)
        await set_membership(binding_env, "False", "Left")
        await until(binding_env.is_unbound)


async def test_a_fleet_that_does_not_answer_does_not_hold_up_the_deletion_of_a_binding(
    binding_env: BindingEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding_deletion, "LEAVES_S", 2.0)
    await binding_env.bind()
    async with binding_env.syncing():

        async def is_connected() -> bool:
            return (await binding_env.condition("Connected"))[0] == "True"

        await until(is_connected)
        await set_membership(binding_env, "True", "Joined")
        await binding_env.unbind()
        await until(binding_env.is_unbound)

        await until(lambda: reports_unconfirmed(binding_env))
