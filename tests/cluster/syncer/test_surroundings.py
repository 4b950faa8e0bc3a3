"""What pods are told of the computing cluster, from a real one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kubeocean.api import group
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.local.faults import Faults, watches
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import SERVICES
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.syncer.forge.podcontext import Endpoint, Privileges, ServiceEnv, ServicePort
from kubeocean.syncer.settings import Address, Given
from kubeocean.syncer.topdown import surroundings
from kubeocean.syncer.topdown.surroundings import Surroundings, addresses_of
from oceans import Sea
from running import running
from straits import Strait
from waiting import until


@pytest.fixture
def places(namespace: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Key, Key]:
    """The two Services, in a namespace of the test's own."""
    server, dns = Key(namespace, "kubernetes-intranet"), Key(namespace, "kube-dns-intranet")
    monkeypatch.setattr(group, "SERVER_SERVICE", server)
    monkeypatch.setattr(group, "DNS_SERVICE", dns)
    return server, dns


async def serve(client: Client, key: Key, *ports: int, **spec: object) -> None:
    listed = [{"port": port, "name": f"p{port}"} for port in ports]
    body = {"metadata": {"name": key.name}, "spec": {"ports": listed, **spec}}
    await client.create(SERVICES, body, namespace=key.namespace)


async def balance(client: Client, key: Key, *ingress: Json) -> None:
    patch = MergePatch({"status": {"loadBalancer": {"ingress": list(ingress)}}})
    await client.patch(SERVICES, key.name, patch, key.namespace, subresource="status")


class Resolver:
    """A DNS whose answers a test decides."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name not in self.answers:
            raise OSError("Name or service not known")
        return self.answers[name]


async def test_addresses_of_the_load_balancers_are_followed(
    strait: Strait, places: tuple[Key, Key]
) -> None:
    server, dns = places
    told: list[object] = []
    async with strait.syncing(Surroundings) as found:
        found.on_change(lambda: told.append((found.server, found.dns)))
        await until(lambda: found.synced)
        lack = found.lacking(dns=True)
        assert lack is not None
        assert lack.service == server
        assert lack.message == (
            f"Service {server} does not exist; or start the syncer with "
            "--kubernetes-service-address"
        )
        await serve(strait.above, server, 6443, type="LoadBalancer")
        await until(lambda: "status.loadBalancer.ingress" in str(found.lacking(dns=False)))
        await balance(strait.above, server, {"ip": "192.0.2.1"})
        await until(lambda: found.server == Endpoint("192.0.2.1", 6443))
        assert found.lacking(dns=False) is None
        lack = found.lacking(dns=True)
        assert lack is not None
        assert lack.service == dns
        await serve(strait.above, dns, 53, type="LoadBalancer")
        await balance(strait.above, dns, {"ip": "192.0.2.2"})
        await until(lambda: found.dns == "192.0.2.2")
        assert found.lacking(dns=True) is None
        await balance(strait.above, server, {"ip": "192.0.2.3"})
        await until(lambda: found.server == Endpoint("192.0.2.3", 6443))
        there = await strait.above.get(SERVICES, server.name, server.namespace)
        await strait.above.delete(SERVICES, server.name, server.namespace, uid=there.uid)
        await until(lambda: found.server is None)
        lack = found.lacking(dns=True)
        assert lack is not None
        assert "does not exist" in lack.message
    assert told == [
        (Endpoint("192.0.2.1", 6443), None),
        (Endpoint("192.0.2.1", 6443), "192.0.2.2"),
        (Endpoint("192.0.2.3", 6443), "192.0.2.2"),
        (None, "192.0.2.2"),
    ]


async def test_a_name_is_looked_up_and_an_answer_that_is_still_good_is_kept(
    strait: Strait, places: tuple[Key, Key], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = places
    monkeypatch.setattr(surroundings, "LOOK_UP_EVERY_S", 0.05)
    monkeypatch.setattr(surroundings, "LOOK_UP_AGAIN_S", 0.05)
    resolver = Resolver()
    name = "lb.example.com"
    async with strait.syncing(lambda world: Surroundings(world, resolve=resolver)) as found:
        await serve(strait.above, server, 443, type="LoadBalancer")
        await balance(strait.above, server, {"hostname": name})
        await until(lambda: f"names {name}, which cannot be" in str(found.lacking(dns=False)))
        resolver.answers[name] = ["192.0.2.7", "192.0.2.8"]
        await until(lambda: found.server == Endpoint("192.0.2.7", 443))
        resolver.answers[name] = ["192.0.2.8", "192.0.2.7"]
        asked = len(resolver.asked)
        await until(lambda: len(resolver.asked) > asked + 2)
        assert found.server == Endpoint("192.0.2.7", 443)
        del resolver.answers[name]
        asked = len(resolver.asked)
        await until(lambda: len(resolver.asked) > asked + 2)
        assert found.server == Endpoint("192.0.2.7", 443)
        resolver.answers[name] = ["192.0.2.9"]
        await until(lambda: found.server == Endpoint("192.0.2.9", 443))


async def test_what_flags_say_needs_no_service(strait: Strait, places: tuple[Key, Key]) -> None:
    server, _ = places
    resolver = Resolver(dns=["192.0.2.5"])
    given = Given(cluster_domain="o", server=Address("192.0.2.4", 6443), dns=Address("dns"))
    await serve(strait.above, server, 443, type="LoadBalancer")
    await balance(strait.above, server, {"ip": "192.0.2.1"})

    async with strait.syncing(lambda world: Surroundings(world, given, resolve=resolver)) as found:
        await until(lambda: found.synced)
        await until(lambda: found.dns == "192.0.2.5")
        assert found.server == Endpoint("192.0.2.4", 6443)
        assert found.lacking(dns=True) is None
        assert found.cluster_domain == "o"


async def test_a_pod_is_told_of_the_services_of_its_namespace(
    strait: Strait, namespace: str
) -> None:
    await serve(strait.above, Key(namespace, "web"), 80, 443, clusterIP="10.96.17.1")
    await serve(strait.above, Key(namespace, "db"), 5432)
    await serve(strait.above, Key(namespace, "headless"), 80, clusterIP="None")
    await serve(
        strait.above, Key(namespace, "alias"), 80, type="ExternalName", externalName="example.com"
    )
    faults = Faults()
    async with strait.syncing(Surroundings, above=faults) as found:
        found.stand_in(lambda key: "10.1.1.1" if key.name == "db" else "")
        await until(lambda: found.synced)
        db, web = found.services(namespace)
        assert db == ServiceEnv("db", "10.1.1.1", (ServicePort(5432, "p5432"),))
        ports = (ServicePort(80, "p80"), ServicePort(443, "p443"))
        assert web == ServiceEnv("web", "10.96.17.1", ports)
        assert found.services("nowhere") == ()
        assert "kubernetes" not in [service.name for service in found.services("default")]
    services = [r for r in faults.requests if r.path.endswith("/services")]
    assert len(services) == 1
    assert watches(services[0])


async def test_pods_may_do_what_the_binding_does_not_deny(sea: Sea) -> None:
    await sea.bind(podPrivileges={"hostPath": "Deny", "hostPID": "Allow"})
    strait = Strait(sea.computing, sea.worker, sea.above, sea.below, name=sea.name)
    async with strait.syncing(Surroundings) as found, running(found.world.bindings):
        assert found.privileges == Privileges(*[False] * 5)  # as long as nobody knows
        await until(lambda: found.privileges == Privileges(host_path=False))
        patch = MergePatch({"spec": {"podPrivileges": None}})
        await sea.above.patch(CLUSTER_BINDINGS, sea.name, patch)
        await until(lambda: found.privileges == Privileges())


async def test_this_machine_knows_itself() -> None:
    assert "127.0.0.1" in await addresses_of("localhost")
    with pytest.raises(OSError):
        await addresses_of("nothing.invalid")
