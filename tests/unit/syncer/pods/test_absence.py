"""A pod is absent only by a Status of an API server, never by an error page of a load balancer."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from kubeocean.errors import NotFound, Unreachable
from kubeocean.runtime.client import Client
from kubeocean.runtime.events import EventRecorder
from kubeocean.runtime.objects import Key, Meta, encode
from kubeocean.runtime.transport import Request, Response, Stream
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.metrics import PodMetrics
from kubeocean.syncer.pods.physical_pods import PhysicalPods
from kubeocean.syncer.pods.views import VirtualPod
from kubeocean.syncer.pods.virtual_pods import VirtualPods
from kubeocean.syncer.replication.kinds.configmaps import CONFIG_MAPS as COPIED
from kubeocean.syncer.replication.sources import MarkedSources
from kubeocean.syncer.worker_health import WorkerHealth

STATUS = encode({"kind": "Status", "reason": "NotFound", "code": 404, "message": "no such object"})
PAGE = b"<html>default backend - 404</html>"
VPOD = VirtualPod(metadata=Meta(name="web", namespace="team", uid="u"))


class Missing:
    """A transport that answers 404 to everything, with this body."""

    generation = 0

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def send(self, request: Request) -> Response:
        return Response(404, {}, self.body)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise Unreachable("there is no server here", sent=False)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        raise Unreachable("there is no server here", sent=False)

    async def close(self) -> None: ...


def clusters(body: bytes) -> Clusters:
    client = Client(Missing(body))
    events = EventRecorder(client, component="test")
    return Clusters(
        binding_name="b",
        cluster_id="c",
        computing_id="id",
        computing=client,
        worker=client,
        worker_health=WorkerHealth(),
        events=events,
        worker_events=events,
    )


async def test_pods_and_sources_are_absent_only_by_a_status_of_an_api_server() -> None:
    absent, unproven = clusters(STATUS), clusters(PAGE)
    assert await VirtualPods(absent).get(VPOD.key) is None
    assert await PhysicalPods(absent, metrics(absent)).find(VPOD) is None
    assert await MarkedSources(absent, COPIED).read(Key("team", "c")) is None
    for reading in (
        VirtualPods(unproven).get(VPOD.key),
        PhysicalPods(unproven, metrics(unproven)).find(VPOD),
        MarkedSources(unproven, COPIED).read(Key("team", "c")),
    ):
        with pytest.raises(NotFound, match="default backend"):
            await reading


def metrics(of: Clusters) -> PodMetrics:
    return PodMetrics(of.binding_name, of.clock, of.metrics)
