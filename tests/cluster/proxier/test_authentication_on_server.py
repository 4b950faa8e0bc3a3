"""Token and access reviews of a real API server, and how long their results are cached."""

from __future__ import annotations

import pytest

from kubeocean.errors import Refusal
from kubeocean.local.cluster import Cluster
from kubeocean.proxier.authentication import Authenticator, Caller
from kubeocean.proxier.authorization import Authorizer, required_rights
from kubeocean.proxier.routes import route_of
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from support.faults import Faults
from support.wait import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def token(client: Client, namespace: str, name: str) -> str:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace)
    made = await client.post(SERVICE_ACCOUNTS, name, "token", {"spec": {}}, namespace)
    return f"Bearer {made['status']['token']}"


async def test_a_token_is_accepted_for_half_a_minute_after_its_account_was_deleted(
    client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    authenticator = Authenticator(client, clock=clock)
    header = await token(client, namespace, "caller")
    caller = await authenticator.authenticate(None, header, "10.0.0.1")
    assert caller.user == f"system:serviceaccount:{namespace}:caller"
    assert caller.by == "token"
    await client.delete(SERVICE_ACCOUNTS, "caller", namespace, uid=None)
    await clock.advance(29.0)
    assert await authenticator.authenticate(None, header, "10.0.0.1") == caller

    async def rejected() -> bool:
        await clock.advance(31.0)
        try:
            await authenticator.authenticate(None, header, "10.0.0.1")
        except Refusal as refusal:
            assert refusal.status == 401
            return True
        return False

    await until(rejected)  # the API server caches tokens for some seconds, too


async def test_token_reviews_of_one_address_are_limited(client: Client, namespace: str) -> None:
    clock = VirtualClock()
    authenticator = Authenticator(client, clock=clock)
    header = await token(client, namespace, "caller")
    caller = await authenticator.authenticate(None, header, "10.0.0.1")
    statuses = []
    for n in range(230):
        with pytest.raises(Refusal) as refused:
            await authenticator.authenticate(
                None, f"Bearer guess-{n // 100}" if n % 2 else "", "10.0.0.1"
            )
        statuses.append(refused.value.status)
    assert set(statuses[:199]) == {401}
    assert set(statuses[200:]) == {429}
    # Another address, and a token that was accepted, are not limited.
    with pytest.raises(Refusal) as refused:
        await authenticator.authenticate(None, "", "fd00::1")
    assert refused.value.status == 401
    assert await authenticator.authenticate(None, header, "10.0.0.1") == caller
    await clock.advance(1.0)
    with pytest.raises(Refusal) as refused:
        await authenticator.authenticate(None, "", "10.0.0.1")
    assert refused.value.status == 401


async def test_addresses_of_one_ipv6_network_share_a_limit(client: Client) -> None:
    authenticator = Authenticator(client, clock=VirtualClock())
    statuses = []
    for n in range(210):
        with pytest.raises(Refusal) as refused:
            await authenticator.authenticate(None, "", f"2001:db8::{n:x}")
        statuses.append(refused.value.status)
    assert statuses[-1] == 429


async def test_a_right_is_cached_for_ten_seconds_after_it_was_revoked(
    client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    authorizer = Authorizer(client, clock=clock)
    rule: Json = {"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}
    role: Json = {"metadata": {"name": namespace}, "rules": [rule]}
    await client.request_json("POST", f"{RBAC}/clusterroles", body=role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace}
    subject = {"kind": "User", "name": namespace, "apiGroup": "rbac.authorization.k8s.io"}
    binding: Json = {
        "metadata": {"name": namespace},
        "roleRef": reference,
        "subjects": [subject],
    }
    caller = Caller(namespace)
    pods = required_rights(route_of("GET", "/pods"))
    with pytest.raises(Refusal) as refused:
        await authorizer.authorize(caller, pods, "v1")
    assert refused.value.status == 403
    await client.request_json("POST", f"{RBAC}/clusterrolebindings", body=binding)

    async def allowed(*, advance_s: float) -> bool:
        await clock.advance(advance_s)
        try:
            await authorizer.authorize(caller, pods, "v1")
        except Refusal:
            return False
        return True

    await until(
        lambda: allowed(advance_s=6.0)
    )  # the API server applies a new RoleBinding after a moment
    # The finer right is enough for its page, and for nothing else.
    with pytest.raises(Refusal) as refused:
        await authorizer.authorize(
            caller, required_rights(route_of("GET", "/containerLogs/n/p/c")), "v1"
        )
    assert refused.value.status == 403
    await client.request("DELETE", f"{RBAC}/clusterrolebindings/{namespace}")
    await authorizer.authorize(caller, pods, "v1")

    async def revoked() -> bool:
        return not await allowed(advance_s=11.0)

    await until(revoked)


@pytest.mark.parametrize("fault", ["the answer is lost", "the server answers 503"])
async def test_a_review_that_fails_once_is_repeated(
    cluster: Cluster, client: Client, namespace: str, fault: str
) -> None:
    header = await token(client, namespace, "caller")
    faults = Faults()
    unsteady = cluster.client(wrap=faults.wrap)

    def fail_once() -> None:
        if fault == "the answer is lost":
            faults.lose_answer(times=1)
        else:
            faults.answer(503, times=1)

    try:
        fail_once()
        caller = await Authenticator(unsteady).authenticate(None, header, "10.0.0.1")
        assert caller.user == f"system:serviceaccount:{namespace}:caller"
        fail_once()
        administrator = Caller("admin", ("system:masters",))
        await Authorizer(unsteady).authorize(
            administrator, required_rights(route_of("GET", "/pods")), "v1"
        )
    finally:
        await unsteady.close()
