"""What a real cluster says of callers and their rights, and how long it is believed."""

from __future__ import annotations

import pytest

from kubeocean.errors import Refusal
from kubeocean.proxier.authority import Authority
from kubeocean.proxier.callers import Caller, Callers
from kubeocean.proxier.permissions import needed
from kubeocean.proxier.routes import route
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from waiting import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def token(client: Client, namespace: str, name: str) -> str:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace)
    made = await client.post(SERVICE_ACCOUNTS, name, "token", {"spec": {}}, namespace)
    return f"Bearer {made['status']['token']}"


async def test_a_token_is_good_for_half_a_minute_after_its_account_is_gone(
    client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    callers = Callers(client, clock=clock)
    shown = await token(client, namespace, "visitor")
    known = await callers.identify(None, shown, "10.0.0.1")
    assert known.user == f"system:serviceaccount:{namespace}:visitor"
    assert known.by == "token"
    await client.delete(SERVICE_ACCOUNTS, "visitor", namespace, uid=None)
    await clock.advance(29.0)
    assert await callers.identify(None, shown, "10.0.0.1") == known

    async def forgotten() -> bool:
        await clock.advance(31.0)
        try:
            await callers.identify(None, shown, "10.0.0.1")
        except Refusal as refusal:
            assert refusal.status == 401
            return True
        return False

    await until(forgotten)  # the server remembers tokens for some seconds of its own


async def test_strangers_cannot_make_us_ask_without_end(client: Client, namespace: str) -> None:
    clock = VirtualClock()
    callers = Callers(client, clock=clock)
    shown = await token(client, namespace, "friend")
    known = await callers.identify(None, shown, "10.0.0.1")
    statuses = []
    for n in range(230):
        with pytest.raises(Refusal) as refused:
            await callers.identify(None, f"Bearer guess-{n // 100}" if n % 2 else "", "10.0.0.1")
        statuses.append(refused.value.status)
    assert set(statuses[:199]) == {401}
    assert set(statuses[200:]) == {429}
    # Somebody else is heard, and so is who is known.
    with pytest.raises(Refusal) as refused:
        await callers.identify(None, "", "fd00::1")
    assert refused.value.status == 401
    assert await callers.identify(None, shown, "10.0.0.1") == known
    await clock.advance(1.0)
    with pytest.raises(Refusal) as refused:
        await callers.identify(None, "", "10.0.0.1")
    assert refused.value.status == 401


async def test_a_machine_of_ipv6_is_one_whatever_its_address(client: Client) -> None:
    callers = Callers(client, clock=VirtualClock())
    statuses = []
    for n in range(210):
        with pytest.raises(Refusal) as refused:
            await callers.identify(None, "", f"2001:db8::{n:x}")
        statuses.append(refused.value.status)
    assert statuses[-1] == 429


async def test_a_right_is_believed_for_ten_seconds_after_it_is_taken(
    client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    authority = Authority(client, clock=clock)
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
    pods = needed(route("GET", "/pods"))
    with pytest.raises(Refusal):
        await authority.permit(caller, pods, "v1")
    await client.request_json("POST", f"{RBAC}/clusterrolebindings", body=binding)

    async def allowed(*, advance_s: float) -> bool:
        await clock.advance(advance_s)
        try:
            await authority.permit(caller, pods, "v1")
        except Refusal:
            return False
        return True

    await until(lambda: allowed(advance_s=6.0))  # the server follows its own rules in a moment
    # The finer right is enough for its page, and for nothing else.
    with pytest.raises(Refusal):
        await authority.permit(caller, needed(route("GET", "/containerLogs/n/p/c")), "v1")
    await client.request("DELETE", f"{RBAC}/clusterrolebindings/{namespace}")
    await authority.permit(caller, pods, "v1")

    async def taken() -> bool:
        return not await allowed(advance_s=11.0)

    await until(taken)
