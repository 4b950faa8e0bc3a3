"""Ports of virtual nodes: those in their labels, and none of the proxier's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kubeocean.api.group import DEFAULT, KUBELET_PORT, PROXIER_PORT_FIRST, VNODE_METRICS_PORT
from kubeocean.proxier.node_ports import NodePortController
from kubeocean.proxier.server import KubeletServer
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Key, Meta


class _Server(KubeletServer):
    def __init__(self) -> None:
        self.opened: dict[int, str] = {}

    async def open_port(
        self, port: int, vnode: str = "", *, host: str | None = None, metrics_only: bool = False
    ) -> int:
        self.opened[port] = vnode
        return port

    async def close_port(self, port: int) -> None:
        del self.opened[port]


class _Vnodes:
    """The part of an informer that the controller uses."""

    def __init__(self) -> None:
        self.nodes: dict[Key, Node] = {}

    def on_change(self, handler: Callable[[Node | None, Node | None], None]) -> None:
        pass

    def get(self, key: Key) -> Node | None:
        return self.nodes.get(key)

    def items(self) -> Iterable[Node]:
        return self.nodes.values()


def labelled(port: str) -> Node:
    return Node(metadata=Meta(name="v", labels={DEFAULT.proxier_port: port}))


@pytest.mark.parametrize(
    "port",
    [str(KUBELET_PORT), str(VNODE_METRICS_PORT), "0", "80", "65536", "-1", "", "²", "9" * 60],
)
async def test_a_label_cannot_open_a_port_outside_the_range_of_virtual_nodes(port: str) -> None:
    server, vnodes = _Server(), _Vnodes()
    node_ports = NodePortController(server, vnodes, domain=DEFAULT)
    vnodes.nodes[Key("", "v")] = labelled(port)
    await node_ports.reconcile(Key("", "v"))
    assert not server.opened
    assert node_ports.ready
    vnodes.nodes[Key("", "v")] = labelled(str(PROXIER_PORT_FIRST))
    assert not node_ports.ready
    await node_ports.reconcile(Key("", "v"))
    assert server.opened == {PROXIER_PORT_FIRST: "v"}
    vnodes.nodes[Key("", "v")] = labelled(port)
    await node_ports.reconcile(Key("", "v"))
    assert not server.opened
