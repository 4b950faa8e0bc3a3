"""Pages: what a virtual node says of itself, as a kubelet would, of its own pods only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import msgspec

from kubeocean import __version__
from kubeocean.errors import Refusal
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.exposition import PodName, rewrite, samples
from kubeocean.proxier.kubelets import Kubelets
from kubeocean.proxier.meters import Meters
from kubeocean.proxier.places import Places
from kubeocean.proxier.routes import NodePage, Page
from kubeocean.proxier.summaries import summarize
from kubeocean.runtime.client import Client
from kubeocean.runtime.codec import encode
from kubeocean.runtime.objects import Json, Key

__all__ = ["Pages", "node_metrics"]

_JSON: Final = "application/json"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
_LARGE: Final = 128 * 1024  # of metrics; more is rewritten beside the event loop
_METRICS: Final = {
    # What was always served here are the figures of containers.
    NodePage.METRICS: "/metrics/cadvisor",
    NodePage.CADVISOR: "/metrics/cadvisor",
    NodePage.RESOURCE: "/metrics/resource",
    NodePage.PROBES: "/metrics/probes",
}
_AT_ONCE: Final = 8  # pages of kubelets, each of which may be some megabytes

_Pods: TypeAlias = dict[tuple[str, str], PodName]
_Make: TypeAlias = Callable[[str, _Pods, str], str]


class Pages:
    """The pages of one binding's virtual nodes.

    - `metrics`: whether there are any figures.
    - `namespace`: of the worker, to which figures are confined; none means all that is ours.
    """

    def __init__(
        self,
        computing: Client,
        places: Places,
        kubelets: Kubelets,
        *,
        metrics: bool = True,
        namespace: str = "",
    ) -> None:
        self._computing = computing
        self._places = places
        self._kubelets = kubelets
        self._has_metrics = metrics
        self._namespace = namespace
        self._meters = Meters()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def answer(self, exchange: Exchange, asked: Page, vnode: str) -> None:
        page = asked.page
        if page in _METRICS:
            await exchange.answer(200, await self._metrics(page, vnode), _EXPOSITION)
        elif page is NodePage.STATS:
            await exchange.answer(200, await self._stats(asked, vnode), _JSON)
        elif page in (NodePage.PODS, NodePage.RUNNING_PODS):
            running = page is NodePage.RUNNING_PODS
            await exchange.answer(200, await self._pods(vnode, running=running), _JSON)
        elif page is NodePage.VERSION:
            await exchange.answer(200, encode({"kubeletVersion": f"v{__version__}"}), _JSON)
        elif page is NodePage.CONFIG:
            await exchange.answer(200, encode({"kubeletconfig": {}}), _JSON)
        else:
            await exchange.answer(200, b"ok")

    async def _metrics(self, page: NodePage, vnode: str) -> bytes:
        async with self._kubelet(vnode, _METRICS[page]) as body:
            pods = self._shown(vnode)
            if page is NodePage.RESOURCE:
                return await _aside(self._resource, body, pods, vnode)
            node = vnode if page is NodePage.METRICS else ""
            return await _aside(_renamed, body, pods, node)

    async def _stats(self, asked: Page, vnode: str) -> bytes:
        wanted = asked.query.get("only_cpu_and_memory", "")
        query = (("only_cpu_and_memory", wanted),) if wanted in ("true", "false") else ()
        async with self._kubelet(vnode, "/stats/summary", query) as body:
            try:
                summary = msgspec.json.decode(body, type=dict)
            except msgspec.DecodeError as error:
                raise Refusal(502, "the kubelet's summary is not JSON") from error
            return encode(summarize(summary, vnode, self._shown(vnode)))

    async def _pods(self, vnode: str, *, running: bool) -> bytes:
        reservations = self._places.domain.host_port_namespace
        fields = f"spec.nodeName={vnode},metadata.namespace!={reservations}"
        if running:
            fields += ",status.phase=Running"
        query = [("fieldSelector", fields), ("resourceVersion", "0")]
        answer: Json = await self._computing.request_json("GET", "/api/v1/pods", query=query)
        answer["metadata"] = {}
        return encode(answer)

    @asynccontextmanager
    async def _kubelet(
        self, vnode: str, path: str, query: tuple[tuple[str, str], ...] = ()
    ) -> AsyncIterator[bytes]:
        """A page of the kubelet, in its turn: kubelets that do not answer take none."""
        if not self._has_metrics:
            raise Refusal(404, "metrics are turned off here")
        node = self._places.vnodes.get(Key("", vnode))
        if node is None:
            raise Refusal(404, f"node {vnode} is not known here")
        pnode = self._places.pnode_of(node)
        async with self._kubelets.opened(pnode, path, query) as read, self._turns:
            yield await read()

    def _shown(self, vnode: str) -> _Pods:
        pods, only = self._places.on(vnode), self._namespace
        return {key: pod for key, pod in pods.items() if not only or key[0] == only}

    def _resource(self, text: str, pods: _Pods, vnode: str) -> str:
        cpu = _by_pod(text, "cpu_usage_seconds_total", pods)
        memory = _by_pod(text, "memory_working_set_bytes", pods)
        seconds = self._meters.of(vnode).read((pod, value) for pod, value, _ in cpu)
        held = sum(value for _, value, _ in memory)
        return node_metrics(seconds, held, (at for *_, at in (*cpu, *memory))) + rewrite(text, pods)


def _by_pod(text: str, figure: str, pods: _Pods) -> list[tuple[PodName, float, str]]:
    """What each pod uses. Where a kubelet keeps no account of pods, their containers' use is it."""
    counted = [found for found in samples(text, f"pod_{figure}", pods) if found[1]]
    known = {pod for pod, *_ in counted}
    parts = [*samples(text, f"container_{figure}", pods)]
    return counted + [found for found in parts if found[0] not in known]


def node_metrics(cpu_s: float, memory: float, times: Iterable[str]) -> str:
    """What a node as a whole uses, as of the latest of these times (milliseconds)."""
    known = [int(at) for at in times if at.isascii() and at.isdigit()]
    at = f" {max(known)}" if known else ""
    return (
        "# HELP node_cpu_usage_seconds_total CPU time of the pods of this node in core-seconds\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        f"node_cpu_usage_seconds_total {cpu_s!r}{at}\n"
        "# HELP node_memory_working_set_bytes Working set of the pods of this node in bytes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        f"node_memory_working_set_bytes {memory!r}{at}\n"
    )


async def _aside(make: _Make, body: bytes, pods: _Pods, node: str) -> bytes:
    """Make a page; a large one beside the event loop."""

    def made() -> bytes:
        return make(body.decode("utf-8", "replace"), pods, node).encode()

    return made() if len(body) < _LARGE else await asyncio.to_thread(made)


def _renamed(text: str, pods: _Pods, node: str) -> str:
    return rewrite(text, pods, node=node)
