"""Ports of the proxier: each virtual node of a binding has one port for as long as the node exists.

A label of the virtual node holds its port; a port outside the range is ignored. A new node gets the
first free port in an order that follows from its name.
"""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.api.group import PROXIER_PORT_FIRST, PROXIER_PORT_LAST, Domain
from kubeocean.errors import InvariantError
from kubeocean.runtime.kinds import Node

__all__ = ["ProxierPorts"]


class ProxierPorts:
    """The proxier port of each virtual node; a port is reserved before the cache shows its node."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._port_of: dict[str, int] = {}
        self._node_at: dict[int, str] = {}

    def follow(self, old: Node | None, new: Node | None) -> None:
        """Reserve or release the port of a node; a handler for the informer of virtual nodes."""
        if new is None:
            assert old is not None
            self._release(old.name)
        else:
            text = new.labels.get(self._domain.proxier_port, "")
            if _is_port(text) and self._port_of.get(new.name) != int(text):
                self._release(new.name)
                self._take(new.name, int(text))

    def of(self, vnode: str) -> int:
        """Return the proxier port of a virtual node; allocate one for a new node."""
        port = self._port_of.get(vnode)
        if port is None:
            free = (each for each in naming.proxier_ports(vnode) if each not in self._node_at)
            port = next(free, 0)
            if not port:
                raise InvariantError("all ports of the proxier are taken", node=vnode)
            self._take(vnode, port)
        return port

    def _take(self, vnode: str, port: int) -> None:
        if self._node_at.setdefault(port, vnode) == vnode:
            self._port_of[vnode] = port

    def _release(self, vnode: str) -> None:
        port = self._port_of.pop(vnode, None)
        if port is not None:
            del self._node_at[port]


def _is_port(text: str) -> bool:
    if not (text.isascii() and text.isdecimal()):
        return False
    return PROXIER_PORT_FIRST <= int(text) <= PROXIER_PORT_LAST
