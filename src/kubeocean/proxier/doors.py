"""Doors: a port for each virtual node, as its label says, while it is there.

A port that cannot be had is tried again; the node's pods are reached through the common port until
then.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api.group import PROXIER_PORT_FIRST, PROXIER_PORT_LAST, Domain
from kubeocean.errors import ConfigError
from kubeocean.proxier.front import Front
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.runtime.outcomes import After, Done, Outcome

__all__ = ["Doors"]

_AGAIN_S: Final = 5.0

_log = get_logger(__name__)


class Doors:
    """Opens and shuts the front's ports as virtual nodes come and go."""

    def __init__(self, front: Front, vnodes: Informer[Node], *, domain: Domain) -> None:
        self._front = front
        self._vnodes = vnodes
        self._domain = domain
        self._ports: dict[str, int] = {}
        self._refused: set[str] = set()  # nodes whose port could not be had
        self.controller: Controller[Key] = Controller("doors", self.reconcile, workers=4)
        vnodes.on_change(self._changed)

    @property
    def ready(self) -> bool:
        """Whether every node that is known has its door, or cannot have it."""
        return all(
            node.name in self._ports or node.name in self._refused or not self._port(node)
            for node in self._vnodes.items()
        )

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if (old and self._port(old)) != (new and self._port(new)):
            node = new or old
            assert node is not None
            self.controller.enqueue(node.key)

    def _port(self, vnode: Node) -> int:
        """What its label says, if it is a port that virtual nodes are given, and not our own."""
        text = vnode.labels.get(self._domain.proxier_port, "")
        port = int(text) if text.isascii() and text.isdigit() else 0
        return port if PROXIER_PORT_FIRST <= port <= PROXIER_PORT_LAST else 0

    async def reconcile(self, key: Key) -> Outcome:
        vnode = self._vnodes.get(key)
        wanted = self._port(vnode) if vnode is not None else 0
        self._refused.discard(key.name)
        held = self._ports.get(key.name, 0)
        if wanted == held:
            return Done()
        if held:
            del self._ports[key.name]
            await self._front.shut(held)
        if not wanted:
            return Done()
        try:
            await self._front.open(wanted, key.name)
        except ConfigError as error:
            _log.warning("Could not open port of node", node=key.name, error=str(error))
            self._refused.add(key.name)
            return After(_AGAIN_S)
        self._ports[key.name] = wanted
        return Done()
