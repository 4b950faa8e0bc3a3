"""Tokens of service accounts that the account of syncers may request in the computing cluster."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from kubeocean.api.group import DEFAULT
from kubeocean.errors import Forbidden
from kubeocean.install.apply import Applier
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.kinds import NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from support.wait import until

HOUR_S = 3600


def token_request(lifetime_s: int, bound: Json | None = None) -> Json:
    spec: Json = {"expirationSeconds": lifetime_s}
    if bound is not None:
        spec["boundObjectRef"] = {"apiVersion": "v1", **bound}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


async def test_tokens_of_syncers_are_bound_to_pods_and_expire_within_a_day(
    new_cluster: Callable[..., Awaitable[Cluster]],
) -> None:
    cluster = await new_cluster()
    client, home = cluster.client(), f"t{uuid.uuid4().hex[:8]}"
    await Applier(client, domain=DEFAULT).apply_all(computing_objects(Values()))
    await client.create(NAMESPACES, {"metadata": {"name": home}})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=home)
    container = {"name": "c", "image": "none"}
    body = {
        "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "default", "containers": [container]},
    }
    pod = await client.create(PODS, body, namespace=home)
    secret = await client.create(SECRETS, {"metadata": {"name": "s"}}, namespace=home)
    to_pod = {"kind": "Pod", "name": "p", "uid": pod.uid}
    to_secret = {"kind": "Secret", "name": "s", "uid": secret.uid}
    kubeconfig = await cluster.service_account("kubeocean-system", "kubeocean-syncer")
    syncer = cluster.client(kubeconfig=kubeconfig)

    async def requests(request: Json) -> bool:
        try:
            await syncer.post(SERVICE_ACCOUNTS, "default", "token", request, home)
        except Forbidden as error:
            assert "tokens m" in str(error), error
            return False
        return True

    async def limited() -> bool:
        return not await requests(token_request(HOUR_S))

    try:
        await until(limited, within=30)  # the API server reads new policies by a watch
        assert await requests(token_request(HOUR_S, to_pod))
        assert await requests(token_request(24 * HOUR_S, to_pod))
        assert not await requests(token_request(24 * HOUR_S + 1, to_pod))
        assert not await requests(token_request(HOUR_S, to_secret))
        own = await client.post(
            SERVICE_ACCOUNTS, "default", "token", token_request(48 * HOUR_S), home
        )
        assert own["status"]["token"]  # an administrator is not limited
    finally:
        await syncer.close()
        await client.close()
