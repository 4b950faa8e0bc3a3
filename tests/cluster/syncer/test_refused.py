"""A worker that answers for two minutes without service: an expired credential, revoked
permissions, a control plane that is down behind its load balancer.

The syncers of these tests have a faster clock.
"""

from __future__ import annotations

import pytest

from kubeocean.api.group import NODE_LEASE_DURATION_S, NODE_LEASE_NAMESPACE
from kubeocean.runtime.kinds import LEASES, PODS
from kubeocean.syncer.app import Syncer
from support.binding_env import BindingEnv
from support.controller_env import quiet
from support.faults import Faults, SkewedClock
from support.wait import until

HASTE = 10.0
REFUSED_S = 120.0
ALWAYS = 1 << 60
PAGE = b"<html><h1>default backend - 404</h1></html>"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def renewed_at(binding_env: BindingEnv) -> dict[str, str]:
    """Return when the lease of each virtual node was last renewed."""
    names = {vnode.name for vnode in await binding_env.vnodes()}
    leases = (await binding_env.computing_api.list(LEASES, NODE_LEASE_NAMESPACE)).items
    return {lease.name: str(lease.spec.renew_time) for lease in leases if lease.name in names}


async def is_lent(binding_env: BindingEnv) -> bool:
    return (
        len(await renewed_at(binding_env)) == 1
        and (await binding_env.condition("Connected"))[0] == "True"
    )


async def see_it_refused(
    binding_env: BindingEnv, faults: Faults, clock: SkewedClock, syncer: Syncer
) -> str:
    """Return the binding's message after two minutes without service; no lease is renewed
    meanwhile.

    After the return nothing more is written to the worker.
    """
    faults.cut()
    began = clock.monotonic()
    await until(lambda: clock.monotonic() - began >= NODE_LEASE_DURATION_S)
    assert not syncer.clusters.worker_health.answers
    last = await renewed_at(binding_env)
    await until(lambda: clock.monotonic() - began >= REFUSED_S)
    assert await renewed_at(binding_env) == last
    status, reason, message = await binding_env.condition("Connected")
    assert (status, reason) == ("False", "WorkerUnreachable")
    faults.heal()

    async def recovered() -> bool:
        now = await renewed_at(binding_env)
        connected = (await binding_env.condition("Connected"))[:2] == ("True", "ConnectivityPassed")
        return connected and all(now[name] != last[name] for name in last)

    await until(recovered)
    await quiet(faults)
    return message


@pytest.mark.parametrize(
    ("status", "page", "expected"),
    [
        (401, None, "does not accept the credential of the kubeconfig"),
        (403, None, "lacks this right"),
        (503, None, "injected 503 (HTTP 503)"),
        (404, PAGE, "default backend - 404"),
    ],
)
async def test_a_worker_without_service_gets_no_heartbeats_and_loses_nothing(
    binding_env: BindingEnv, home: str, status: int, page: bytes | None, expected: str
) -> None:
    faults, clock = Faults(), SkewedClock(rate=HASTE)
    await binding_env.bind()
    await binding_env.lend(forceReclaim=True)
    await binding_env.add_node("n0")
    async with binding_env.syncing(worker_api=faults.wrap, clock=clock) as syncer:
        await until(lambda: is_lent(binding_env))
        (vnode,) = await binding_env.vnodes()
        pod = await binding_env.create_bound_pod(home, "stays", vnode.name)
        faults.answer(status, times=ALWAYS, page=page)
        message = await see_it_refused(binding_env, faults, clock, syncer)
        assert expected in message
        assert "/api/v1/nodes" in message
        assert [each.uid for each in await binding_env.vnodes()] == [vnode.uid]
        now = await binding_env.computing_api.get(PODS, pod.name, home)
        assert (now.uid, now.deleting) == (pod.uid, False)


async def test_a_missing_permission_to_read_policies_is_named(
    binding_env: BindingEnv,
) -> None:
    faults, clock = Faults(), SkewedClock(rate=HASTE)
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n0")
    async with binding_env.syncing(worker_api=faults.wrap, clock=clock) as syncer:
        await until(lambda: is_lent(binding_env))
        faults.answer(403, times=ALWAYS, when=lambda r: "resourceleasingpolicies" in r.path)
        message = await see_it_refused(binding_env, faults, clock, syncer)
        assert "/resourceleasingpolicies: injected 403" in message
        assert len(await binding_env.vnodes()) == 1
