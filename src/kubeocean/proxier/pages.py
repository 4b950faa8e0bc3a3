"""Pages: what a virtual node says of itself, as a kubelet would, of its own pods only."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from kubeocean import __version__
from kubeocean.api.group import Domain
from kubeocean.errors import Refusal
from kubeocean.proxier.exchange import Exchange
from kubeocean.proxier.exposition import PodName, rewrite, totals
from kubeocean.proxier.kubelets import Kubelets
from kubeocean.proxier.places import Places
from kubeocean.proxier.routes import NodePage, Page
from kubeocean.proxier.summaries import summarize
from kubeocean.runtime.client import Client
from kubeocean.runtime.codec import encode
from kubeocean.runtime.objects import Json, Key

__all__ = ["Pages"]

_JSON: Final = "application/json"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
_LARGE: Final = 256 * 1024  # of metrics; more is rewritten beside the event loop
_METRICS: Final = {
    # What was always served here are the figures of containers.
    NodePage.METRICS: "/metrics/cadvisor",
    NodePage.CADVISOR: "/metrics/cadvisor",
    NodePage.RESOURCE: "/metrics/resource",
    NodePage.PROBES: "/metrics/probes",
}
# Of a node as a whole: the sum of its pods, which is all that this node is.
_NODE_SUMS: Final = (
    ("node_cpu_usage_seconds_total", "pod_cpu_usage_seconds_total", "counter", "CPU time"),
    ("node_memory_working_set_bytes", "pod_memory_working_set_bytes", "gauge", "Working set"),
)


class Pages:
    """The pages of one binding's virtual nodes."""

    def __init__(
        self, computing: Client, places: Places, kubelets: Kubelets, *, domain: Domain
    ) -> None:
        self._computing = computing
        self._places = places
        self._kubelets = kubelets
        self._domain = domain

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
        body = await self._kubelets.get(self._address(vnode), _METRICS[page])
        pods = self._places.on(vnode)
        text = body.decode("utf-8", "replace")
        made = _resource if page is NodePage.RESOURCE else rewrite
        if len(text) < _LARGE:
            return made(text, pods).encode()
        return (await asyncio.to_thread(made, text, pods)).encode()

    async def _stats(self, asked: Page, vnode: str) -> bytes:
        wanted = asked.query.get("only_cpu_and_memory", "")
        query = (("only_cpu_and_memory", wanted),) if wanted in ("true", "false") else ()
        body = await self._kubelets.get(self._address(vnode), "/stats/summary", query)
        try:
            summary = msgspec.json.decode(body, type=dict)
        except msgspec.DecodeError as error:
            raise Refusal(502, "the kubelet's summary is not JSON") from error
        return encode(summarize(summary, vnode, self._places.on(vnode)))

    async def _pods(self, vnode: str, *, running: bool) -> bytes:
        fields = f"spec.nodeName={vnode}" + (",status.phase=Running" if running else "")
        query = [("fieldSelector", fields), ("resourceVersion", "0")]
        answer: Json = await self._computing.request_json("GET", "/api/v1/pods", query=query)
        answer["metadata"] = {}
        return encode(answer)

    def _address(self, vnode: str) -> str:
        node = self._places.vnodes.get(Key("", vnode))
        return node.labels.get(self._domain.physical_node_inner_ip, "") if node else ""


def _resource(text: str, pods: dict[tuple[str, str], PodName]) -> str:
    lines = []
    for name, of, kind, about in _NODE_SUMS:
        lines += [f"# HELP {name} {about} of the pods on this node", f"# TYPE {name} {kind}"]
        lines.append(f"{name} {totals(text, of, pods)!r}")
    return "\n".join([*lines, rewrite(text, pods)])
