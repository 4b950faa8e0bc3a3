"""Whether a syncer leads, wherever the templates let it run."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api.bindings import BindingSpec, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Forbidden
from kubeocean.manager.syncer_leader import SyncerLeaders
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.objects import Key, Meta
from kubeocean.runtime.transport import Request, Response
from support.scripted_transport import Scripted, answer

BINDING = ClusterBinding(metadata=Meta(name="b"), spec=BindingSpec(cluster_id="c"))
LEASE = {
    "metadata": {
        "name": "kubeocean-syncer-c",
        "namespace": "there",
        "uid": "u",
        "resourceVersion": "7",
    },
    "spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z"},
}


class Server(Scripted):
    """An API server with one Lease in one namespace, which may refuse reads of another
    namespace."""

    def __init__(self, *, closed: str = "") -> None:
        super().__init__()
        self._closed = closed
        self.deleted: list[dict[str, str]] = []
        self.deletes = 200

    async def send(self, request: Request) -> Response:
        if request.method == "DELETE":
            self.deleted.append(msgspec.json.decode(request.body or b"{}")["preconditions"])
            return answer(self.deletes)
        if f"/namespaces/{self._closed}/" in request.path:
            return answer(403)
        exists = request.path.endswith("/namespaces/there/leases/kubeocean-syncer-c")
        return answer(200, msgspec.json.encode(LEASE)) if exists else answer(404)


def leaders(server: Server, *homes: str) -> tuple[SyncerLeaders, VirtualClock]:
    clock = VirtualClock()
    return SyncerLeaders(Client(server), homes=lambda: homes, domain=DEFAULT, clock=clock), clock


async def test_a_syncer_leads_in_any_namespace_of_the_templates() -> None:
    looking, clock = leaders(Server(), DEFAULT.system_namespace, "there")
    assert (await looking.of(BINDING)).leads
    await clock.advance(60)
    assert not (await looking.of(BINDING)).leads
    looking.forget(BINDING)
    assert (await looking.of(BINDING)).leads  # seen for the first time
    elsewhere, _ = leaders(Server(), DEFAULT.system_namespace)
    assert not (await elsewhere.of(BINDING)).leads


async def test_a_namespace_without_permission_is_skipped() -> None:
    looking, _ = leaders(Server(closed="there"), DEFAULT.system_namespace, "there")
    assert not (await looking.of(BINDING)).leads
    usual, _ = leaders(Server(closed=DEFAULT.system_namespace), DEFAULT.system_namespace)
    with pytest.raises(Forbidden):
        await usual.of(BINDING)


def other(name: str, cluster_id: str) -> ClusterBinding:
    return ClusterBinding(metadata=Meta(name=name, uid=name), spec=BindingSpec(cluster_id))


async def test_a_lease_is_deleted_by_uid_and_version_when_its_holder_does_not_renew() -> None:
    server = Server()
    looking, clock = leaders(server, "there")
    others = [BINDING, other("x", "y")]
    assert await looking.remove(BINDING, others) == [Key("there", "kubeocean-syncer-c")]
    assert server.deleted == []
    await clock.advance(60)
    assert await looking.remove(BINDING, others) == []
    assert server.deleted == [{"uid": "u", "resourceVersion": "7"}]


@pytest.mark.parametrize(("name", "cluster_id"), [("x", "c"), ("c", "y")])
async def test_a_lease_that_another_binding_uses_is_not_deleted(name: str, cluster_id: str) -> None:
    server = Server()
    looking, clock = leaders(server, "there")
    for _ in range(2):
        assert await looking.remove(BINDING, [BINDING, other(name, cluster_id)]) == []
        await clock.advance(60)
    assert server.deleted == []


@pytest.mark.parametrize("answered", [403, 404, 409])
async def test_a_lease_that_cannot_be_deleted_does_not_block_the_deletion(answered: int) -> None:
    server = Server()
    server.deletes = answered
    looking, clock = leaders(server, "there")
    await looking.remove(BINDING, [])
    await clock.advance(60)
    assert await looking.remove(BINDING, []) == []
    assert len(server.deleted) == 1
