"""Opens a port of the server for each virtual node, as the node's label names it.

A port that cannot be listened on is tried again; until then the common port serves the node's pods.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.group import PROXIER_PORT_FIRST, PROXIER_PORT_LAST, Domain
from kubeocean.errors import ConfigError
from kubeocean.proxier.server import KubeletServer
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key

__all__ = ["NodePortController"]

_RETRY_S: Final = 5.0

_log = get_logger(__name__)


class NodePortController:
    """Opens and closes the server's ports as virtual nodes are created and deleted."""

    def __init__(self, server: KubeletServer, vnodes: Informer[Node], *, domain: Domain) -> None:
        self._server = server
        self._vnodes = vnodes
        self._domain = domain
        self._ports: dict[str, int] = {}  # by virtual node; 0: could not be opened
        self.controller: Controller[Key] = Controller("node-ports", self.reconcile, workers=4)
        vnodes.on_change(self._changed)

    @property
    def ready(self) -> bool:
        """Whether the port of each known node is open, or cannot be opened."""
        return all(
            node.name in self._ports or not self._port(node) for node in self._vnodes.items()
        )

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if (old and self._port(old)) != (new and self._port(new)):
            node = new or old
            assert node is not None
            self.controller.enqueue(node.key)

    def _port(self, vnode: Node) -> int:
        """Return the port in a virtual node's label; 0 if it is missing or out of range."""
        text = vnode.labels.get(self._domain.proxier_port, "")
        port = int(text) if text.isascii() and text.isdigit() else 0
        return port if PROXIER_PORT_FIRST <= port <= PROXIER_PORT_LAST else 0

    async def reconcile(self, key: Key) -> Outcome:
        vnode = self._vnodes.get(key)
        desired = self._port(vnode) if vnode is not None else 0
        opened = self._ports.get(key.name, 0)
        if opened and opened == desired:
            return Done()
        self._ports.pop(key.name, None)
        if opened:
            await self._server.close_port(opened)
        if not desired:
            return Done()
        try:
            await self._server.open_port(desired, key.name)
        except ConfigError as error:
            _log.warning("Could not open port of virtual node", node=key.name, error=str(error))
            self._ports[key.name] = 0
            return After(_RETRY_S)
        self._ports[key.name] = desired
        return Done()
