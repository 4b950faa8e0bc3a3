"""Ports of virtual nodes: those that their labels say, and none of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kubeocean.api.group import DEFAULT, KUBELET_PORT, PROXIER_PORT_FIRST, VNODE_METRICS_PORT
from kubeocean.proxier.doors import Doors
from kubeocean.proxier.front import Front
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Key, Meta


class _Front(Front):
    def __init__(self) -> None:
        self.opened: dict[int, str] = {}

    async def open(
        self, port: int, vnode: str = "", *, host: str | None = None, metrics_only: bool = False
    ) -> int:
        self.opened[port] = vnode
        return port

    async def shut(self, port: int) -> None:
        del self.opened[port]


class _Vnodes:
    """As much of an informer as doors ask."""

    def __init__(self) -> None:
        self.held: dict[Key, Node] = {}

    def on_change(self, handler: Callable[[Node | None, Node | None], None]) -> None:
        pass

    def get(self, key: Key) -> Node | None:
        return self.held.get(key)

    def items(self) -> Iterable[Node]:
        return self.held.values()


def labelled(port: str) -> Node:
    return Node(metadata=Meta(name="v", labels={DEFAULT.proxier_port: port}))


@pytest.mark.parametrize(
    "port",
    [str(KUBELET_PORT), str(VNODE_METRICS_PORT), "0", "80", "65536", "-1", "", "²", "9" * 60],
)
async def test_a_label_cannot_take_a_port_that_is_not_a_nodes(port: str) -> None:
    front, vnodes = _Front(), _Vnodes()
    doors = Doors(front, vnodes, domain=DEFAULT)
    vnodes.held[Key("", "v")] = labelled(port)
    await doors.reconcile(Key("", "v"))
    assert not front.opened
    assert doors.ready
    vnodes.held[Key("", "v")] = labelled(str(PROXIER_PORT_FIRST))
    assert not doors.ready
    await doors.reconcile(Key("", "v"))
    assert front.opened == {PROXIER_PORT_FIRST: "v"}
    vnodes.held[Key("", "v")] = labelled(port)
    await doors.reconcile(Key("", "v"))
    assert not front.opened
