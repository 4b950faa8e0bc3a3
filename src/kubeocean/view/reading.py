"""Reading: both sides of all bindings, once, and all at the same time.

Lists come in pages and are pruned as they are decoded; pods are counted and forgotten. Without
bindings there is nothing to show. What else a viewer may not list is left out, and said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.naming import label_value
from kubeocean.errors import ApiError, ConfigError, Forbidden, NotFound
from kubeocean.leasing.counted import COUNTED_PODS
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.syncer.podviews import bound_pods
from kubeocean.view.asking import Connect, Workers, connect_worker
from kubeocean.view.clusters import ocean_view
from kubeocean.view.counting import Tally
from kubeocean.view.facts import Facts, NodeUse
from kubeocean.view.kinds import DEPLOYMENTS, VIRTUAL_NODES, Deployment, VirtualNode
from kubeocean.view.model import OceanView

__all__ = ["PATIENCE_S", "Reader"]

PATIENCE_S: Final = 5.0  # what a worker may take to answer

_T = TypeVar("_T")


class Reader:
    """Looks at the ocean, as often as it is asked to; the computing client is the caller's."""

    def __init__(
        self,
        computing: Client,
        *,
        domain: Domain = DEFAULT,
        patience_s: float = PATIENCE_S,
        ask_workers: bool = True,
        clock: Clock | None = None,
        connect: Connect = connect_worker,
    ) -> None:
        self._computing = computing
        self._domain = domain
        self._ask_workers = ask_workers
        self._clock = clock or RealClock()
        self._workers = Workers(
            computing, patience_s=patience_s, clock=self._clock, connect=connect
        )

    async def close(self) -> None:
        """Give back the connections to workers."""
        await self._workers.close()

    async def look(self, name: str = "") -> OceanView:
        """The ocean as it is now, or one binding of it.

        :raises ConfigError: there is no binding of that name.
        :raises ApiError: the computing cluster cannot be read.
        """
        facts = await self.read(name)
        return ocean_view(facts, now=self._clock.now(), domain=self._domain)

    async def read(self, name: str = "") -> Facts:
        """What `look` makes its view from."""
        bindings = await self._bindings(name)
        failed: ExceptionGroup[ApiError] | None = None
        unseen: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                nodes = group.create_task(_seen(unseen, "nodes", lambda: self._nodes(name)))
                uses = group.create_task(_seen(unseen, "pods", self._uses))
                programs = group.create_task(_seen(unseen, "deployments", self._deployments))
                elections = group.create_task(_seen(unseen, "leases", self._elections))
                workers = {
                    binding.name: group.create_task(self._workers.ask(binding))
                    for binding in bindings
                    if self._ask_workers
                }
        except* ApiError as errors:
            failed = errors
        if failed is not None:
            raise _first(failed)
        return Facts(
            bindings=bindings,
            nodes=nodes.result() or (),
            uses=uses.result(),
            deployments=programs.result() or (),
            elections=elections.result() or (),
            workers={name: task.result() for name, task in workers.items()},
            unseen=tuple(sorted(unseen)),
            all_bindings=not name,
        )

    async def names(self) -> list[str]:
        """The names of all bindings.

        :raises ApiError: they cannot be listed.
        """
        return sorted(binding.name for binding in await self._all_bindings())

    async def node_names(self) -> list[str]:
        """The names of all virtual nodes.

        :raises ApiError: they cannot be listed.
        """
        return sorted(node.name for node in await self._nodes(""))

    async def pod_names(self, namespace: str) -> list[str]:
        """The names of all pods of a namespace.

        :raises ApiError: they cannot be listed.
        """
        found = (await self._computing.list(COUNTED_PODS, namespace)).items
        return sorted(pod.name for pod in found)

    async def _bindings(self, name: str) -> tuple[ClusterBinding, ...]:
        if not name:
            return await self._all_bindings()
        try:
            return (await self._computing.get(CLUSTER_BINDINGS, name),)
        except NotFound:
            known = ", ".join(await self.names()) or "none"
            said = f"there is no such binding; there are: {known}"
            raise ConfigError(said, source="NAME", value=name) from None

    async def _all_bindings(self) -> tuple[ClusterBinding, ...]:
        try:
            return tuple((await self._computing.list(CLUSTER_BINDINGS)).items)
        except NotFound:
            raise NotFound(
                "could not list ClusterBindings: Kubeocean is not installed in this cluster;"
                " do it with: kubeocean install"
            ) from None

    async def _nodes(self, binding: str) -> tuple[VirtualNode, ...]:
        domain = self._domain
        ours = f"{domain.managed_by}={domain.product}"
        if binding:
            ours += f",{domain.cluster_binding}={label_value(binding)}"
        return tuple((await self._computing.list(VIRTUAL_NODES, labels=ours)).items)

    async def _uses(self) -> dict[str, NodeUse]:
        tally = Tally(self._clock.now())
        async for page in self._computing.pages(COUNTED_PODS, fields=bound_pods(self._domain)):
            if page.begins:
                tally.clear()
            tally.count(page.items)
        return tally.uses()

    async def _deployments(self) -> tuple[Deployment, ...]:
        return tuple((await self._computing.list(DEPLOYMENTS, self._domain.system_namespace)).items)

    async def _elections(self) -> tuple[Lease, ...]:
        return tuple((await self._computing.list(LEASES, self._domain.system_namespace)).items)


async def _seen(unseen: list[str], what: str, read: Callable[[], Awaitable[_T]]) -> _T | None:
    try:
        return await read()
    except Forbidden:
        unseen.append(f"{what} are not shown: not allowed to list them")
        return None


def _first(errors: ExceptionGroup[ApiError]) -> ApiError:
    """One of them: what goes wrong for one list mostly does for the others."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
