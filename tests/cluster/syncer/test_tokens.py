"""Tokens of virtual pods on two real control planes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import PODS, SECRETS
from kubeocean.runtime.objects import Json, Untyped
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.transport import Request
from kubeocean.syncer.forge.references import TokenSource, token_secret
from kubeocean.syncer.podviews import VirtualPod
from porters import MOUNT, Porter, bind_pod, crashing, make_namespace, seen_below, unbind
from straits import Strait, quiet
from waiting import until

DUE = "kubeocean.io/token-due"


def token_volume(*audiences: str, seconds: int = 3600) -> Json:
    sources = [
        {
            "serviceAccountToken": {
                "path": f"t{n}",
                "expirationSeconds": seconds,
                **({"audience": audience} if audience else {}),
            }
        }
        for n, audience in enumerate(audiences)
    ]
    return {"projected": {"sources": sources}}


def secret_name(pod: VirtualPod, index: int = 0) -> str:
    source = TokenSource("v0", index, f"t{index}")
    return token_secret(source, pod.name, pod.namespace, uid=pod.uid)


async def secret(strait: Strait, pod: VirtualPod, index: int = 0) -> Untyped | None:
    return await seen_below(strait, SECRETS, secret_name(pod, index))


def token_in(found: Untyped | None) -> str:
    assert found is not None
    return base64.b64decode(found.content()["data"]["token"]).decode()


def claims(token: str) -> Json:
    part = token.split(".")[1]
    read: Json = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return read


async def review(strait: Strait, token: str, *audiences: str) -> Json:
    body = {"spec": {"token": token, "audiences": list(audiences)}}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    status: Json = (await strait.above.request_json("POST", path, body=body))["status"]
    return status


def requests_for_tokens(faults: Faults) -> int:
    return sum(r.method == "POST" and r.path.endswith("/token") for r in faults.requests)


def about_tokens(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/token")


async def make_due(strait: Strait, pod: VirtualPod) -> str:
    """As if four fifths of its life were over; the token."""
    found = await until(lambda: secret(strait, pod))
    patch = MergePatch({"metadata": {"annotations": {DUE: "2026-01-01T00:00:00Z"}}})
    await strait.below.patch(SECRETS, secret_name(pod), patch, MOUNT)
    return token_in(found)


async def test_a_pod_has_a_token_that_is_its_own(strait: Strait, home: str) -> None:
    above, below = Faults(), Faults()
    async with strait.syncing(Porter, above=above, below=below) as porter:
        pod = await bind_pod(strait, home, "p", token_volume(""))
        found = await until(lambda: secret(strait, pod))
        await quiet(above, below)
        names = porter.answers[pod.key]
    assert found is not None
    assert names.tokens == {("v0", 0): found.name}
    status = await review(strait, token_in(found))
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{home}:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [pod.uid]
    ppod = await strait.below.get(PODS, f"p-{home}", MOUNT)
    assert [owner.uid for owner in found.metadata.owner_references or ()] == [ppod.uid]
    assert found.content()["type"] == "Opaque"
    assert found.labels["kubeocean.io/service-account-token"] == "true"
    assert found.annotations["kubeocean.io/service-account"] == "default"
    assert found.annotations["kubeocean.io/virtual-pod-uid"] == pod.uid
    due = datetime.fromisoformat(found.annotations[DUE]) - datetime.now(UTC)
    assert timedelta(minutes=46) < due < timedelta(minutes=49)
    assert [r.path for r in above.requests if r.writes] == [
        f"/api/v1/namespaces/{home}/serviceaccounts/default/token"
    ]
    asked = [(r.method, r.path.rpartition("/")[2]) for r in below.requests if not watches(r)]
    assert asked == [("POST", "pods"), ("POST", "secrets")]


async def test_a_token_dies_with_its_pod(strait: Strait, home: str) -> None:
    async with strait.syncing(Porter):
        pod = await bind_pod(strait, home, "p", token_volume(""))
        token = token_in(await until(lambda: secret(strait, pod)))
        await unbind(strait, pod)

        async def refused() -> bool:
            return not (await review(strait, token)).get("authenticated")

        await until(refused)


async def test_every_source_of_a_volume_has_its_own(strait: Strait, home: str) -> None:
    async with strait.syncing(Porter):
        pod = await bind_pod(strait, home, "p", token_volume("vault", "", seconds=7200))
        vault = token_in(await until(lambda: secret(strait, pod, 0)))
        api = token_in(await until(lambda: secret(strait, pod, 1)))
    assert claims(vault)["aud"] == ["vault"]
    assert claims(vault)["exp"] - claims(vault)["iat"] == 7200
    assert (await review(strait, vault, "vault"))["authenticated"] is True
    assert (await review(strait, api))["authenticated"] is True
    assert "authenticated" not in await review(strait, vault)


async def test_after_a_restart_good_tokens_are_not_asked_for_again(
    strait: Strait, home: str
) -> None:
    async with strait.syncing(Porter):
        pods = [await bind_pod(strait, home, f"p{n}", token_volume("")) for n in range(3)]
        for pod in pods:
            await until(lambda pod=pod: secret(strait, pod))
    faults = Faults()
    async with strait.syncing(Porter, above=faults, below=faults) as porter:
        await until(lambda: porter.dependents.tokens.secrets.has_synced)
        await quiet(faults)
    assert all(watches(request) for request in faults.requests if request.path != "/version")


async def test_a_token_is_renewed_in_place_when_it_is_due(strait: Strait, home: str) -> None:
    async with strait.syncing(Porter):
        pod = await bind_pod(strait, home, "p", token_volume(""))
        uid = (await until(lambda: secret(strait, pod))).uid
        old = await make_due(strait, pod)

        async def renewed() -> bool:
            found = await secret(strait, pod)
            assert found is not None
            return token_in(found) != old and found.uid == uid and found.annotations[DUE] > "2026-1"

        await until(renewed)


async def test_the_old_token_stays_while_there_is_no_new_one(strait: Strait, home: str) -> None:
    above = Faults()
    async with strait.syncing(Porter, above=above):
        pod = await bind_pod(strait, home, "p", token_volume(""))
        await until(lambda: secret(strait, pod))
        above.answer(500, times=4, when=about_tokens)
        asked = requests_for_tokens(above)
        old = await make_due(strait, pod)
        await until(lambda: requests_for_tokens(above) >= asked + 3)
        found = await secret(strait, pod)
        assert token_in(found) == old
        assert (await review(strait, old))["authenticated"] is True

        async def renewed() -> bool:
            return token_in(await secret(strait, pod)) != old

        await until(renewed)


async def test_a_lost_secret_is_made_again(strait: Strait, home: str) -> None:
    async with strait.syncing(Porter):
        pod = await bind_pod(strait, home, "p", token_volume(""))
        found = await until(lambda: secret(strait, pod))
        assert found is not None
        await strait.below.delete(SECRETS, found.name, MOUNT, uid=found.uid)
        again = await until(lambda: secret(strait, pod))
        assert again is not None
        assert again.uid != found.uid


async def test_one_of_the_earlier_implementation_is_taken_over(strait: Strait, home: str) -> None:
    pod = await bind_pod(strait, home, "p", token_volume(""))
    body = {
        "metadata": {
            "name": secret_name(pod),
            "labels": {
                "kubeocean.io/managed-by": "kubeocean",
                "kubeocean.io/service-account-token": "true",
            },
            "annotations": {
                "kubeocean.io/virtual-pod-namespace": home,
                "kubeocean.io/virtual-pod-name": "p",
                "kubeocean.io/virtual-pod-uid": pod.uid,
                "kubeocean.io/service-account": "default",
            },
        },
        "data": {"token": base64.b64encode(b"old").decode()},
    }
    made = await strait.below.create(SECRETS, body, namespace=MOUNT)
    async with strait.syncing(Porter):

        async def taken() -> bool:
            found = await secret(strait, pod)
            assert found is not None
            return token_in(found) != "old" and bool(found.metadata.owner_references)

        await until(taken)
        found = await secret(strait, pod)
        assert found is not None
        assert found.uid == made.uid
        assert found.labels["kubeocean.io/cluster-binding"] == strait.name


async def test_a_foreign_secret_of_that_name_is_left_alone(strait: Strait, home: str) -> None:
    pod = await bind_pod(strait, home, "p", token_volume(""))
    body = {"metadata": {"name": secret_name(pod)}, "data": {"token": "AAAA"}}
    foreign = await strait.below.create(SECRETS, body, namespace=MOUNT)
    above = Faults()
    async with strait.syncing(Porter, above=above):
        await until(lambda: requests_for_tokens(above) >= 2)
        there = await strait.below.get(SECRETS, foreign.name, MOUNT)
        assert there.resource_version == foreign.resource_version
        await strait.below.delete(SECRETS, foreign.name, MOUNT, uid=foreign.uid)
        found = await until(lambda: secret(strait, pod))
        assert found is not None
        assert found.uid != foreign.uid


async def test_an_account_that_is_not_there_yet_is_waited_for(strait: Strait, home: str) -> None:
    above = Faults()
    above.answer(404, times=3, when=about_tokens, reason="NotFound")
    async with strait.syncing(Porter, above=above):
        pod = await bind_pod(strait, home, "p", token_volume(""))
        await until(lambda: secret(strait, pod))
    assert requests_for_tokens(above) == 4


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 6))
async def test_a_crash_after_the_nth_write_changes_nothing(
    strait: Strait, home: str, n: int
) -> None:
    pod = await bind_pod(strait, home, "p", token_volume(""))
    async with crashing(strait, n) as crash:
        await crash.or_until(lambda: secret(strait, pod))
        if not crash.is_set():
            old = await make_due(strait, pod)

            async def renewed() -> bool:
                return token_in(await secret(strait, pod)) != old

            await crash.or_until(renewed)
    faults = Faults()
    async with strait.syncing(Porter, above=faults, below=faults):
        found = await until(lambda: secret(strait, pod))
        ppod = await strait.below.get(PODS, f"p-{home}", MOUNT)
        assert found is not None
        assert [owner.uid for owner in found.metadata.owner_references or ()] == [ppod.uid]
        if n > 3:
            await until(lambda: is_fresh(strait, pod))
        assert (await review(strait, token_in(await secret(strait, pod))))["authenticated"] is True


async def is_fresh(strait: Strait, pod: VirtualPod) -> bool:
    found = await secret(strait, pod)
    assert found is not None
    return found.annotations[DUE] > "2026-01-02"


async def test_the_secret_goes_with_the_physical_pod(cluster: Cluster, client: Client) -> None:
    """On a worker that has all its controllers; this one is both clusters."""
    await make_namespace(client, MOUNT)
    strait = Strait(cluster, cluster, client, client)
    home = f"h-{strait.name}"
    await make_namespace(client, home)
    async with strait.syncing(Porter):
        pod = await bind_pod(strait, home, "p", token_volume(""))
        await until(lambda: secret(strait, pod))
        await unbind(strait, pod)

        async def collected() -> bool:
            return await secret(strait, pod) is None

        await until(collected, within=150)
    with pytest.raises(NotFound):
        await client.get(PODS, f"p-{home}", MOUNT)
