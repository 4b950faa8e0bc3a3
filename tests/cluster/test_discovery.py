"""Kinds known only at run time, on a real kube-apiserver."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import ApplyPatch, Client
from kubeocean.runtime.discovery import Discovery
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Key, Resource, Untyped
from kubeocean.runtime.transport import Request, Response, Transport
from support.custom_resources import LARGE_THINGS, define
from support.wait import until


async def test_built_in_kinds_are_mapped(client: Client) -> None:
    discovery = Discovery(client)
    deployments = await discovery.of_kind("apps/v1", "Deployment")
    assert deployments.path("ns", "x", "scale") == (
        "/apis/apps/v1/namespaces/ns/deployments/x/scale"
    )
    assert (await discovery.named("no")).kind == "Node"
    assert (await discovery.named("hpa", "autoscaling")).version == "v2"
    pods = next(r for r in await discovery.resources() if r.plural == "pods" and not r.group)
    assert {"get", "list", "watch"} <= pods.verbs
    assert "eviction" in pods.subresources


async def test_a_definition_that_is_removed_is_noticed_after_expire(client: Client) -> None:
    resource = Resource("expire.kubeocean.test", "v1", "fads", "Fad", True, Untyped)
    await define(client, resource)
    discovery = Discovery(client)

    async def is_known() -> bool:
        discovery.expire()
        known = await discovery.find("expire.kubeocean.test/v1", "Fad")
        return known is not None and {"list", "watch"} <= known.verbs

    async def is_unknown() -> bool:
        return not await is_known()

    await until(is_known)
    definitions = await discovery.named("customresourcedefinitions", "apiextensions.k8s.io")
    await client.delete(definitions, "fads.expire.kubeocean.test", uid=None)
    assert await discovery.find("expire.kubeocean.test/v1", "Fad"), "what was read last"
    await until(is_unknown)


async def test_an_older_server_is_understood_too(cluster: Cluster) -> None:
    class Older:
        """A server without aggregated discovery."""

        def __init__(self, inner: Transport) -> None:
            self.inner = inner

        async def send(self, request: Request) -> Response:
            return await self.inner.send(Request(request.method, request.path))

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    new, old = cluster.client(), cluster.client(wrap=lambda t: Older(t))
    modern = {r.api_version + r.plural: r for r in await Discovery(new).resources()}
    legacy = {r.api_version + r.plural: r for r in await Discovery(old).resources()}
    assert modern.keys() == legacy.keys()
    for name, resource in legacy.items():
        assert (resource.kind, resource.namespaced) == (
            modern[name].kind,
            modern[name].namespaced,
        )
        assert resource.verbs == modern[name].verbs
    await new.close()
    await old.close()


async def test_a_custom_kind_goes_through_client_and_informer(
    client: Client, namespace: str
) -> None:
    discovery = Discovery(client)
    with pytest.raises(NotFound, match="no kind Missing"):
        await discovery.of_kind("kubeocean.test/v1", "Missing")
    await define(client, LARGE_THINGS)
    things = await until(lambda: _found(discovery), waiting_for="the definition to be served")
    informer = Informer(client, things, namespace=namespace, keep_raw=True)
    running = asyncio.create_task(informer.run())
    await informer.synced()
    body = {
        "apiVersion": "kubeocean.test/v1",
        "kind": "LargeThing",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"blob": "hello"},
    }
    await client.patch(things, "one", ApplyPatch(body), namespace)
    seen = await until(lambda: informer.get(Key(namespace, "one")))
    assert seen.content()["spec"] == {"blob": "hello"}
    assert (seen.api_version, seen.kind) == ("kubeocean.test/v1", "LargeThing")
    running.cancel()
    await asyncio.wait([running])


async def _found(discovery: Discovery) -> object:
    try:
        return await discovery.of_kind("kubeocean.test/v1", "LargeThing")
    except NotFound:
        return None


async def test_a_refresh_finds_new_kinds_at_once(client: Client) -> None:
    discovery = Discovery(client)
    before = await discovery.resources()
    assert not await discovery.refresh()
    resource = Resource("refreshed.example.com", "v1", "gadgets", "Gadget", True, Untyped)
    await define(client, resource)

    async def is_found() -> bool:
        return await discovery.refresh()

    await until(is_found)
    added = set(await discovery.resources()) - set(before)
    assert resource.plural in {each.plural for each in added}
