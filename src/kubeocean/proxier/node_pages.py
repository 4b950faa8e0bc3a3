"""The kubelet pages of a virtual node: metrics, summary, pods, version, configuration and health.

Metrics and the summary are read from the worker's kubelet when they are requested, and reduced to
the pods of the virtual node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

import msgspec

from kubeocean import __version__
from kubeocean.errors import Refusal
from kubeocean.proxier.http import Exchange
from kubeocean.proxier.kubelet_client import KubeletClient
from kubeocean.proxier.metrics_text import PodName, PodSample, rewrite
from kubeocean.proxier.node_metrics import UsageCounters, node_metrics, summarize, usage_samples
from kubeocean.proxier.pod_lookup import PodLookup
from kubeocean.proxier.routes import NodePage, Page
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.objects import Json, Key, encode

__all__ = ["NodePages"]

_JSON: Final = "application/json"
_METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_LARGE: Final = 128 * 1024  # bytes of metrics that are rewritten in a thread
_KUBELET_PAGES: Final = {
    # On this page the earlier implementation served the metrics of containers.
    NodePage.METRICS: "/metrics/cadvisor",
    NodePage.CADVISOR: "/metrics/cadvisor",
    NodePage.RESOURCE: "/metrics/resource",
    NodePage.PROBES: "/metrics/probes",
}
_CONCURRENT_READS: Final = 8  # of pages of kubelets, each of which may be some megabytes

_Pods: TypeAlias = dict[tuple[str, str], PodName]
T = TypeVar("T")


class NodePages:
    """The pages of one binding's virtual nodes.

    - `metrics`: whether metrics are served.
    - `namespace`: the worker's namespace to which metrics are confined; empty for all.
    """

    def __init__(
        self,
        computing: Client,
        pod_lookup: PodLookup,
        kubelets: KubeletClient,
        *,
        metrics: bool = True,
        namespace: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._computing = computing
        self._pod_lookup = pod_lookup
        self._kubelets = kubelets
        self._has_metrics = metrics
        self._namespace = namespace
        self._counters = UsageCounters()
        self._clock = clock or RealClock()
        self._reads = asyncio.Semaphore(_CONCURRENT_READS)

    async def serve(self, exchange: Exchange, route: Page, vnode: str) -> None:
        """Respond to a request for a page of a virtual node."""
        page = route.page
        if page in _KUBELET_PAGES:
            await exchange.respond(200, await self._metrics(page, vnode), _METRICS_TEXT)
        elif page is NodePage.STATS:
            await exchange.respond(200, await self._summary(route, vnode), _JSON)
        elif page in (NodePage.PODS, NodePage.RUNNING_PODS):
            running = page is NodePage.RUNNING_PODS
            await exchange.respond(200, await self._pods(vnode, running=running), _JSON)
        elif page is NodePage.VERSION:
            await exchange.respond(200, encode({"kubeletVersion": f"v{__version__}"}), _JSON)
        elif page is NodePage.CONFIG:
            await exchange.respond(200, encode({"kubeletconfig": {}}), _JSON)
        else:
            await exchange.respond(200, b"ok")

    async def _metrics(self, page: NodePage, vnode: str) -> bytes:
        async with self._kubelet_page(vnode, _KUBELET_PAGES[page]) as body:
            pods = self._pods_shown(vnode)
            if page is NodePage.RESOURCE:
                return await self._resource(body, pods, vnode)
            node = vnode if page is NodePage.METRICS else ""
            return await _off_loop(body, lambda text: rewrite(text, pods, node=node).encode())

    async def _summary(self, route: Page, vnode: str) -> bytes:
        short = route.query.get("only_cpu_and_memory", "")
        query = (("only_cpu_and_memory", short),) if short in ("true", "false") else ()
        async with self._kubelet_page(vnode, "/stats/summary", query) as body:
            try:
                summary = msgspec.json.decode(body, type=dict)
            except msgspec.DecodeError as error:
                raise Refusal(502, "the kubelet's summary is not JSON") from error
            return encode(summarize(summary, vnode, self._pods_shown(vnode)))

    async def _pods(self, vnode: str, *, running: bool) -> bytes:
        reservations = self._pod_lookup.domain.host_port_namespace
        fields = f"spec.nodeName={vnode},metadata.namespace!={reservations}"
        if running:
            fields += ",status.phase=Running"
        query = [("fieldSelector", fields), ("resourceVersion", "0")]
        pods: Json = await self._computing.request_json("GET", "/api/v1/pods", query=query)
        pods["metadata"] = {}
        return encode(pods)

    @asynccontextmanager
    async def _kubelet_page(
        self, vnode: str, path: str, query: tuple[tuple[str, str], ...] = ()
    ) -> AsyncIterator[bytes]:
        """Yield a page of a virtual node's kubelet; one that does not answer delays no other."""
        if not self._has_metrics:
            raise Refusal(404, "metrics are disabled (--metrics-enabled=false)")
        node = self._pod_lookup.vnodes.get(Key("", vnode))
        if node is None:
            raise Refusal(404, f"node {vnode} is not a virtual node of this binding")
        pnode = self._pod_lookup.pnode_of(node)
        async with self._kubelets.opened(pnode, path, query) as read, self._reads:
            yield await read()

    def _pods_shown(self, vnode: str) -> _Pods:
        pods, namespace = self._pod_lookup.pods_on(vnode), self._namespace
        return {key: pod for key, pod in pods.items() if not namespace or key[0] == namespace}

    async def _resource(self, body: bytes, pods: _Pods, vnode: str) -> bytes:
        def parse(text: str) -> tuple[list[PodSample], list[PodSample], bytes]:
            return (
                usage_samples(text, "cpu_usage_seconds_total", pods),
                usage_samples(text, "memory_working_set_bytes", pods),
                rewrite(text, pods).encode(),
            )

        cpu, memory, page = await _off_loop(body, parse)
        # On the event loop: two scrapes of one node must not count the same seconds twice.
        cpu_s = self._counters.of(vnode).add(cpu, self._clock.monotonic())
        memory_bytes = sum(sample.value for sample in memory)
        times_ms = (sample.time_ms for sample in (*cpu, *memory))
        return node_metrics(cpu_s, memory_bytes, times_ms).encode() + page


async def _off_loop(body: bytes, make: Callable[[str], T]) -> T:
    """Return `make` applied to a page; for a large page in a thread, off the event loop."""

    def made() -> T:
        return make(body.decode("utf-8", "replace"))

    return made() if len(body) < _LARGE else await asyncio.to_thread(made)
