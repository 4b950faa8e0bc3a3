"""Addresses and Services of the computing cluster for pods in the worker, from a real server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kubeocean.api import group
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import SERVICES
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.pods.forge_context import Endpoint, Privileges, ServiceEnv, ServicePort
from kubeocean.syncer.replication import cluster_endpoints
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints, resolve
from kubeocean.syncer.settings import Address, Given
from support.background import running
from support.binding_env import BindingEnv
from support.controller_env import ControllerEnv
from support.faults import Faults, watches
from support.wait import until


@pytest.fixture
def well_known(namespace: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Key, Key]:
    """Set the Services of the API server and of the DNS to ones in the namespace of the test."""
    server, dns = Key(namespace, "kubernetes-intranet"), Key(namespace, "kube-dns-intranet")
    monkeypatch.setattr(group, "SERVER_SERVICE", server)
    monkeypatch.setattr(group, "DNS_SERVICE", dns)
    return server, dns


async def create_service(client: Client, key: Key, *ports: int, **spec: object) -> None:
    listed = [{"port": port, "name": f"p{port}"} for port in ports]
    body = {"metadata": {"name": key.name}, "spec": {"ports": listed, **spec}}
    await client.create(SERVICES, body, namespace=key.namespace)


async def set_ingress(client: Client, key: Key, *ingress: Json) -> None:
    patch = MergePatch({"status": {"loadBalancer": {"ingress": list(ingress)}}})
    await client.patch(SERVICES, key.name, patch, key.namespace, subresource="status")


class Resolver:
    """A resolver with the answers of a test."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = dict(answers)
        self.names: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.names.append(name)
        if name not in self.answers:
            raise OSError("Name or service not known")
        return self.answers[name]


async def test_the_addresses_follow_the_load_balancers_of_the_services(
    controller_env: ControllerEnv, well_known: tuple[Key, Key]
) -> None:
    server, dns = well_known
    changes: list[object] = []
    async with controller_env.syncing(ClusterEndpoints) as endpoints:
        endpoints.on_change(lambda: changes.append((endpoints.server, endpoints.dns)))
        await until(lambda: endpoints.synced)
        missing = endpoints.lacking(dns=True)
        assert missing is not None
        assert missing.service == server
        assert missing.message == (
            f"Service {server} does not exist; or start the syncer with "
            "--kubernetes-service-address"
        )
        await create_service(controller_env.computing_api, server, 6443, type="LoadBalancer")
        await until(lambda: "status.loadBalancer.ingress" in str(endpoints.lacking(dns=False)))
        await set_ingress(controller_env.computing_api, server, {"ip": "192.0.2.1"})
        await until(lambda: endpoints.server == Endpoint("192.0.2.1", 6443))
        assert endpoints.lacking(dns=False) is None
        missing = endpoints.lacking(dns=True)
        assert missing is not None
        assert missing.service == dns
        await create_service(controller_env.computing_api, dns, 53, type="LoadBalancer")
        await set_ingress(controller_env.computing_api, dns, {"ip": "192.0.2.2"})
        await until(lambda: endpoints.dns == "192.0.2.2")
        assert endpoints.lacking(dns=True) is None
        await set_ingress(controller_env.computing_api, server, {"ip": "192.0.2.3"})
        await until(lambda: endpoints.server == Endpoint("192.0.2.3", 6443))
        service = await controller_env.computing_api.get(SERVICES, server.name, server.namespace)
        await controller_env.computing_api.delete(
            SERVICES, server.name, server.namespace, uid=service.uid
        )
        await until(lambda: endpoints.server is None)
        missing = endpoints.lacking(dns=True)
        assert missing is not None
        assert "does not exist" in missing.message
    assert changes == [
        (Endpoint("192.0.2.1", 6443), None),
        (Endpoint("192.0.2.1", 6443), "192.0.2.2"),
        (Endpoint("192.0.2.3", 6443), "192.0.2.2"),
        (None, "192.0.2.2"),
    ]


async def test_a_host_name_is_resolved_and_an_address_that_is_still_good_is_kept(
    controller_env: ControllerEnv, well_known: tuple[Key, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = well_known
    monkeypatch.setattr(cluster_endpoints, "RESOLVE_EVERY_S", 0.05)
    monkeypatch.setattr(cluster_endpoints, "RESOLVE_RETRY_S", 0.05)
    resolver = Resolver()
    name = "lb.example.com"
    async with controller_env.syncing(
        lambda clusters: ClusterEndpoints(clusters, resolver=resolver)
    ) as endpoints:
        await create_service(controller_env.computing_api, server, 443, type="LoadBalancer")
        await set_ingress(controller_env.computing_api, server, {"hostname": name})
        await until(lambda: f"names {name}, which cannot be" in str(endpoints.lacking(dns=False)))
        resolver.answers[name] = ["192.0.2.7", "192.0.2.8"]
        await until(lambda: endpoints.server == Endpoint("192.0.2.7", 443))
        resolver.answers[name] = ["192.0.2.8", "192.0.2.7"]
        before = len(resolver.names)
        await until(lambda: len(resolver.names) > before + 2)
        assert endpoints.server == Endpoint("192.0.2.7", 443)
        del resolver.answers[name]
        before = len(resolver.names)
        await until(lambda: len(resolver.names) > before + 2)
        assert endpoints.server == Endpoint("192.0.2.7", 443)
        resolver.answers[name] = ["192.0.2.9"]
        await until(lambda: endpoints.server == Endpoint("192.0.2.9", 443))


async def test_a_host_name_that_no_resolver_accepts_is_reported_and_can_be_corrected(
    controller_env: ControllerEnv, well_known: tuple[Key, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    """API servers accept labels that are longer than DNS permits."""
    server, _ = well_known
    monkeypatch.setattr(cluster_endpoints, "RESOLVE_RETRY_S", 0.05)
    name = f"{'a' * 64}.example.com"
    async with controller_env.syncing(ClusterEndpoints) as endpoints:
        await create_service(controller_env.computing_api, server, 443, type="LoadBalancer")
        await set_ingress(controller_env.computing_api, server, {"hostname": name})
        await until(lambda: f"names {name}, which cannot be" in str(endpoints.lacking(dns=False)))
        await set_ingress(controller_env.computing_api, server, {"ip": "192.0.2.1"})
        await until(lambda: endpoints.server == Endpoint("192.0.2.1", 443))


async def test_addresses_that_flags_set_need_no_service(
    controller_env: ControllerEnv, well_known: tuple[Key, Key]
) -> None:
    server, _ = well_known
    resolver = Resolver(dns=["192.0.2.5"])
    given = Given(cluster_domain="o", server=Address("192.0.2.4", 6443), dns=Address("dns"))
    await create_service(controller_env.computing_api, server, 443, type="LoadBalancer")
    await set_ingress(controller_env.computing_api, server, {"ip": "192.0.2.1"})

    async with controller_env.syncing(
        lambda clusters: ClusterEndpoints(clusters, given, resolver=resolver)
    ) as endpoints:
        await until(lambda: endpoints.synced)
        await until(lambda: endpoints.dns == "192.0.2.5")
        assert endpoints.server == Endpoint("192.0.2.4", 6443)
        assert endpoints.lacking(dns=True) is None
        assert endpoints.cluster_domain == "o"


async def test_a_pod_gets_the_services_of_its_namespace(
    controller_env: ControllerEnv, namespace: str
) -> None:
    await create_service(
        controller_env.computing_api, Key(namespace, "web"), 80, 443, clusterIP="10.96.17.1"
    )
    await create_service(controller_env.computing_api, Key(namespace, "db"), 5432)
    await create_service(
        controller_env.computing_api, Key(namespace, "headless"), 80, clusterIP="None"
    )
    await create_service(
        controller_env.computing_api,
        Key(namespace, "alias"),
        80,
        type="ExternalName",
        externalName="example.com",
    )
    faults = Faults()
    async with controller_env.syncing(ClusterEndpoints, computing_api=faults) as endpoints:
        endpoints.use_copies(lambda key: "10.1.1.1" if key.name == "db" else "")
        await until(lambda: endpoints.synced)
        db, web = endpoints.services(namespace)
        assert db == ServiceEnv("db", "10.1.1.1", (ServicePort(5432, "p5432"),))
        ports = (ServicePort(80, "p80"), ServicePort(443, "p443"))
        assert web == ServiceEnv("web", "10.96.17.1", ports)
        assert endpoints.services("nowhere") == ()
        assert "kubernetes" not in [service.name for service in endpoints.services("default")]
    services = [r for r in faults.requests if r.path.endswith("/services")]
    assert len(services) == 1
    assert watches(services[0])


async def test_pods_have_the_privileges_that_the_binding_does_not_deny(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind(podPrivileges={"hostPath": "Deny", "hostPID": "Allow"})
    controller_env = ControllerEnv(
        binding_env.computing,
        binding_env.worker,
        binding_env.computing_api,
        binding_env.worker_api,
        name=binding_env.name,
    )
    async with (
        controller_env.syncing(ClusterEndpoints) as endpoints,
        running(endpoints.clusters.bindings),
    ):
        denied = Privileges(*[False] * 5, restricted=True)  # until the binding is known
        assert endpoints.privileges == denied
        await until(lambda: endpoints.privileges == Privileges(host_path=False))
        patch = MergePatch({"spec": {"podPrivileges": None}})
        await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, patch)
        await until(lambda: endpoints.privileges == Privileges())


async def test_localhost_is_resolved_and_an_unknown_name_is_not() -> None:
    assert "127.0.0.1" in await resolve("localhost")
    for name in ("nothing.invalid", f"{'a' * 64}.invalid", "a..invalid", "nul\0.invalid"):
        with pytest.raises(OSError):
            await resolve(name)
