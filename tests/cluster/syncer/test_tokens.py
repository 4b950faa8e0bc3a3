"""Tokens of virtual pods on two real control planes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.api.ownership import ownership_labels, pod_marks
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.runtime.transport import Request
from kubeocean.syncer.pods.referenced_objects import TokenSource, token_secret
from kubeocean.syncer.pods.views import VirtualPod
from support.controller_env import ControllerEnv, quiet
from support.faults import Faults, watches
from support.pod_copies_driver import (
    MOUNT,
    PodCopiesDriver,
    bind_pod,
    crashing,
    delete_pod,
    make_namespace,
    read_in_worker,
)
from support.wait import until

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


async def secret(controller_env: ControllerEnv, pod: VirtualPod, index: int = 0) -> Untyped | None:
    return await read_in_worker(controller_env, SECRETS, secret_name(pod, index))


def token_in(stored: Untyped | None) -> str:
    assert stored is not None
    return base64.b64decode(stored.content()["data"]["token"]).decode()


def claims(token: str) -> Json:
    part = token.split(".")[1]
    read: Json = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return read


async def review(controller_env: ControllerEnv, token: str, *audiences: str) -> Json:
    body = {"spec": {"token": token, "audiences": list(audiences)}}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    status: Json = (await controller_env.computing_api.request_json("POST", path, body=body))[
        "status"
    ]
    return status


def requests_for_tokens(faults: Faults) -> int:
    return sum(r.method == "POST" and r.path.endswith("/token") for r in faults.requests)


def about_tokens(request: Request) -> bool:
    return request.method == "POST" and request.path.endswith("/token")


async def make_due(controller_env: ControllerEnv, pod: VirtualPod) -> str:
    """Set the recorded time of renewal to the past; return the token."""
    stored = await until(lambda: secret(controller_env, pod))
    patch = MergePatch({"metadata": {"annotations": {DUE: "2026-01-01T00:00:00Z"}}})
    await controller_env.worker_api.patch(SECRETS, secret_name(pod), patch, MOUNT)
    return token_in(stored)


async def test_a_pod_gets_a_token_of_its_own(controller_env: ControllerEnv, home: str) -> None:
    computing_faults, worker_faults = Faults(), Faults()
    async with controller_env.syncing(
        PodCopiesDriver, computing_api=computing_faults, worker_api=worker_faults
    ) as driver:
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        stored = await until(lambda: secret(controller_env, pod))
        await quiet(computing_faults, worker_faults)
        names = driver.answers[pod.key]
    assert stored is not None
    assert names.tokens == {("v0", 0): stored.name}
    status = await review(controller_env, token_in(stored))
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{home}:default"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [pod.uid]
    ppod = await controller_env.worker_api.get(PODS, f"p-{home}", MOUNT)
    assert [owner.uid for owner in stored.metadata.owner_references or ()] == [ppod.uid]
    assert stored.content()["type"] == "Opaque"
    assert stored.labels["kubeocean.io/service-account-token"] == "true"
    assert stored.annotations["kubeocean.io/service-account"] == "default"
    assert stored.annotations["kubeocean.io/virtual-pod-uid"] == pod.uid
    due = datetime.fromisoformat(stored.annotations[DUE]) - datetime.now(UTC)
    assert timedelta(minutes=46) < due < timedelta(minutes=49)
    assert [r.path for r in computing_faults.requests if r.writes] == [
        f"/api/v1/namespaces/{home}/serviceaccounts/default/token"
    ]
    sent = [(r.method, r.path.rpartition("/")[2]) for r in worker_faults.requests if not watches(r)]
    assert sent == [("POST", "pods"), ("POST", "secrets")]


async def test_no_token_is_requested_for_a_pod_of_another_worker(
    controller_env: ControllerEnv, home: str
) -> None:
    """The clusterID of the other binding, and so its node names, begin like those of this one."""
    other = replace(controller_env, name=f"{controller_env.name}-eu")
    theirs = await bind_pod(other, home, "theirs", token_volume(""))
    assert theirs.spec.node_name.startswith(f"vnode-{controller_env.cluster_id}-")
    computing_faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=computing_faults) as driver:
        ids, domain = driver.clusters.ids, controller_env.domain
        marks = pod_marks(theirs.key, theirs.uid, domain)
        owner = await until(lambda: read_in_worker(controller_env, PODS, f"theirs-{home}"))
        owns = {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}
        forged = {
            "name": secret_name(theirs),
            "namespace": MOUNT,
            "labels": ownership_labels(ids, domain) | {domain.service_account_token: "true"},
            "annotations": marks | {DUE: "2026-01-01T00:00:00Z"},
            "ownerReferences": [owns],
        }
        await controller_env.worker_api.create(SECRETS, {"metadata": forged, "data": {}})
        mine = await bind_pod(controller_env, home, "mine", token_volume(""))
        await until(lambda: secret(controller_env, mine))
        await until(lambda: driver.pod_copies.tokens.secrets.get(Key(MOUNT, forged["name"])))
        await quiet(computing_faults)
    assert requests_for_tokens(computing_faults) == 1
    stored = await secret(controller_env, theirs)
    assert stored is not None and not stored.content().get("data")


async def test_a_token_is_invalid_after_its_pod_is_deleted(
    controller_env: ControllerEnv, home: str
) -> None:
    async with controller_env.syncing(PodCopiesDriver):
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        token = token_in(await until(lambda: secret(controller_env, pod)))
        await delete_pod(controller_env, pod)

        async def refused() -> bool:
            return not (await review(controller_env, token)).get("authenticated")

        await until(refused)


async def test_every_token_source_of_a_volume_has_a_secret(
    controller_env: ControllerEnv, home: str
) -> None:
    async with controller_env.syncing(PodCopiesDriver):
        pod = await bind_pod(controller_env, home, "p", token_volume("vault", "", seconds=7200))
        vault = token_in(await until(lambda: secret(controller_env, pod, 0)))
        api = token_in(await until(lambda: secret(controller_env, pod, 1)))
    assert claims(vault)["aud"] == ["vault"]
    assert claims(vault)["exp"] - claims(vault)["iat"] == 7200
    assert (await review(controller_env, vault, "vault"))["authenticated"] is True
    assert (await review(controller_env, api))["authenticated"] is True
    assert "authenticated" not in await review(controller_env, vault)


async def test_after_a_restart_good_tokens_are_not_requested_again(
    controller_env: ControllerEnv, home: str
) -> None:
    async with controller_env.syncing(PodCopiesDriver):
        pods = [await bind_pod(controller_env, home, f"p{n}", token_volume("")) for n in range(3)]
        for pod in pods:
            await until(lambda pod=pod: secret(controller_env, pod))
    faults = Faults()
    async with controller_env.syncing(
        PodCopiesDriver, computing_api=faults, worker_api=faults
    ) as driver:
        await until(lambda: driver.pod_copies.tokens.secrets.has_synced)
        await quiet(faults)
    assert all(watches(request) for request in faults.requests if request.path != "/version")


async def test_a_token_is_renewed_in_place_when_it_is_due(
    controller_env: ControllerEnv, home: str
) -> None:
    async with controller_env.syncing(PodCopiesDriver):
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        uid = (await until(lambda: secret(controller_env, pod))).uid
        old = await make_due(controller_env, pod)

        async def renewed() -> bool:
            stored = await secret(controller_env, pod)
            assert stored is not None
            return (
                token_in(stored) != old and stored.uid == uid and stored.annotations[DUE] > "2026-1"
            )

        await until(renewed)


async def test_the_old_token_stays_while_it_cannot_be_renewed(
    controller_env: ControllerEnv, home: str
) -> None:
    computing_faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=computing_faults):
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        await until(lambda: secret(controller_env, pod))
        computing_faults.answer(500, times=4, when=about_tokens)
        requested = requests_for_tokens(computing_faults)
        old = await make_due(controller_env, pod)
        await until(lambda: requests_for_tokens(computing_faults) >= requested + 3)
        stored = await secret(controller_env, pod)
        assert token_in(stored) == old
        assert (await review(controller_env, old))["authenticated"] is True

        async def renewed() -> bool:
            return token_in(await secret(controller_env, pod)) != old

        await until(renewed)


async def test_a_deleted_secret_is_created_again(controller_env: ControllerEnv, home: str) -> None:
    async with controller_env.syncing(PodCopiesDriver):
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        stored = await until(lambda: secret(controller_env, pod))
        assert stored is not None
        await controller_env.worker_api.delete(SECRETS, stored.name, MOUNT, uid=stored.uid)
        again = await until(lambda: secret(controller_env, pod))
        assert again is not None
        assert again.uid != stored.uid


async def test_a_token_secret_of_the_earlier_implementation_is_adopted(
    controller_env: ControllerEnv, home: str
) -> None:
    pod = await bind_pod(controller_env, home, "p", token_volume(""))
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
    legacy = await controller_env.worker_api.create(SECRETS, body, namespace=MOUNT)
    async with controller_env.syncing(PodCopiesDriver):

        async def taken() -> bool:
            stored = await secret(controller_env, pod)
            assert stored is not None
            return token_in(stored) != "old" and bool(stored.metadata.owner_references)

        await until(taken)
        stored = await secret(controller_env, pod)
        assert stored is not None
        assert stored.uid == legacy.uid
        assert stored.labels["kubeocean.io/cluster-binding"] == controller_env.name


async def test_a_foreign_secret_with_the_name_of_a_token_secret_is_left_alone(
    controller_env: ControllerEnv, home: str
) -> None:
    pod = await bind_pod(controller_env, home, "p", token_volume(""))
    body = {"metadata": {"name": secret_name(pod)}, "data": {"token": "AAAA"}}
    foreign = await controller_env.worker_api.create(SECRETS, body, namespace=MOUNT)
    computing_faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=computing_faults):
        await until(lambda: requests_for_tokens(computing_faults) >= 2)
        copy = await controller_env.worker_api.get(SECRETS, foreign.name, MOUNT)
        assert copy.resource_version == foreign.resource_version
        await controller_env.worker_api.delete(SECRETS, foreign.name, MOUNT, uid=foreign.uid)
        stored = await until(lambda: secret(controller_env, pod))
        assert stored is not None
        assert stored.uid != foreign.uid


async def test_a_service_account_that_does_not_exist_yet_is_waited_for(
    controller_env: ControllerEnv, home: str
) -> None:
    computing_faults = Faults()
    computing_faults.answer(404, times=3, when=about_tokens, reason="NotFound")
    async with controller_env.syncing(PodCopiesDriver, computing_api=computing_faults):
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        await until(lambda: secret(controller_env, pod))
    assert requests_for_tokens(computing_faults) == 4


@pytest.mark.sweep
@pytest.mark.parametrize("n", range(1, 6))
async def test_a_crash_after_the_nth_write_changes_nothing(
    controller_env: ControllerEnv, home: str, n: int
) -> None:
    pod = await bind_pod(controller_env, home, "p", token_volume(""))
    async with crashing(controller_env, n) as crash:
        await crash.or_until(lambda: secret(controller_env, pod))
        if not crash.is_set():
            old = await make_due(controller_env, pod)

            async def renewed() -> bool:
                return token_in(await secret(controller_env, pod)) != old

            await crash.or_until(renewed)
    faults = Faults()
    async with controller_env.syncing(PodCopiesDriver, computing_api=faults, worker_api=faults):
        stored = await until(lambda: secret(controller_env, pod))
        ppod = await controller_env.worker_api.get(PODS, f"p-{home}", MOUNT)
        assert stored is not None
        assert [owner.uid for owner in stored.metadata.owner_references or ()] == [ppod.uid]
        if n > 3:
            await until(lambda: is_fresh(controller_env, pod))
        assert (await review(controller_env, token_in(await secret(controller_env, pod))))[
            "authenticated"
        ] is True


async def is_fresh(controller_env: ControllerEnv, pod: VirtualPod) -> bool:
    stored = await secret(controller_env, pod)
    assert stored is not None
    return stored.annotations[DUE] > "2026-01-02"


async def test_the_secret_is_garbage_collected_with_the_physical_pod(
    cluster: Cluster, client: Client
) -> None:
    """A cluster with all controllers is both the computing and the worker cluster."""
    await make_namespace(client, MOUNT)
    controller_env = ControllerEnv(cluster, cluster, client, client)
    home = f"h-{controller_env.name}"
    await make_namespace(client, home)
    async with controller_env.syncing(PodCopiesDriver):
        pod = await bind_pod(controller_env, home, "p", token_volume(""))
        await until(lambda: secret(controller_env, pod))
        await delete_pod(controller_env, pod)

        async def collected() -> bool:
            return await secret(controller_env, pod) is None

        await until(collected, within=150)
    with pytest.raises(NotFound):
        await client.get(PODS, f"p-{home}", MOUNT)
