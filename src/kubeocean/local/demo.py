"""Demo: Kubeocean installed on local clusters.

Kubeocean is installed and workers are joined by the code of `kubeocean install` and `kubeocean
join`. Deployments roll out manager, syncers and proxiers to a node that runs them as processes,
each with its own account and roles. A sample workload runs on nodes that the workers lend.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import TRUE
from kubeocean.api.naming import label_value, proxier_deployment, syncer_deployment
from kubeocean.api.policies import PolicySpec
from kubeocean.errors import LocalError, NotFound
from kubeocean.install.apply import FIELD_MANAGER, Applier
from kubeocean.install.computing_objects import computing_objects, manager_deployment
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.leave import Leave
from kubeocean.install.values import Values, WorkerValues
from kubeocean.install.wait import State, manager_state, rollout, settle, worker_state
from kubeocean.local import demo_objects
from kubeocean.local.fleet import LocalFleet
from kubeocean.local.ocean import Ocean, Shape
from kubeocean.local.process_node.node import TAINT, ProcessNode
from kubeocean.local.progress import Progress, Silence
from kubeocean.runtime.client import MergePatch, connect
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.credentials import KubeconfigAccess
from kubeocean.runtime.kinds import NODES, SERVICES, Node
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition

__all__ = ["Demo", "at_work"]

# One replica of each: a second one guards against the loss of a machine, and there is only one.
_REPLICAS: Final = 1
_PATIENCE_S: Final = 120.0
_NODE_S: Final = 0.1  # in addition, for each node
_PARTING_S: Final = 3.0  # no server answers at that address
_DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", True, Untyped)
# The taint that Kubernetes removes some time after a node has become Ready.
_NOT_YET: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
_WORKER: Final = re.compile(r"worker-[0-9]+")


@asynccontextmanager
async def at_work(ocean: Ocean, *, progress: Progress | None = None) -> AsyncIterator[None]:
    """Run Kubeocean on a running `Ocean` inside the `async with` block, if `Shape.product` is set.

    :raises LocalError: a component does not become ready in time.
    """
    if not ocean.shape.product:
        yield
        return
    node = ProcessNode(ocean.computing, domain=ocean.shape.domain)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(node.run())]
            fleet = LocalFleet(ocean, progress=progress) if ocean.shape.fleet else None
            if fleet is not None:
                tasks.append(group.create_task(fleet.run()))
            await node.ready.wait()
            kubeconfigs = {cluster.name: cluster.kubeconfig for cluster in ocean.workers}
            product = Demo(ocean.computing.kubeconfig, kubeconfigs, ocean.shape, progress=progress)
            await product.bring_up(logs=node.root)
            if fleet is not None:
                await fleet.ready.wait()
            yield
            for task in tasks:
                task.cancel()
    except ExceptionGroup as failed:
        raise _first(failed) from None  # users read the message: one reason, not a tree of them


class Demo:
    """Installs Kubeocean on local clusters, with the administrators' kubeconfigs."""

    def __init__(
        self,
        computing: Path,
        workers: Mapping[str, Path],
        shape: Shape,
        *,
        progress: Progress | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._computing = computing
        self._workers = dict(workers)
        self._shape = shape
        self._domain = domain = shape.domain
        self._values = Values(domain=domain, replicas=_REPLICAS, tolerations=(TAINT,))
        self._progress = progress or Silence()
        self._clock = clock or RealClock()

    async def bring_up(self, *, logs: Path) -> None:
        """Install Kubeocean, join all workers, and deploy the sample workload.

        :raises LocalError: a component is not ready in time; the message names `logs`.
        """
        try:
            async with AsyncExitStack() as stack:
                computing = self._applier("computing", self._computing, stack)
                await self._install(computing)
                await self._part(computing)
                async with asyncio.TaskGroup() as group:
                    for name in self._workers:
                        group.create_task(self._join(name, computing, demo_objects.lease(name)))
                if self._workers and self._shape.nodes:
                    await self._show(computing)
        except (LocalError, ExceptionGroup) as failed:
            error = _first(failed)
            if not isinstance(error, LocalError):
                raise error from None
            raise LocalError(f"{error}; the logs of Kubeocean's programs are in {logs}") from None

    async def heal(self) -> None:
        """Restore changed objects of the installation, and join workers that are not bound.

        :raises LocalError: a component does not become ready again in time.
        """
        async with AsyncExitStack() as stack:
            computing = self._applier("computing", self._computing, stack)
            await self._install(computing)
            bound = {each.name for each in (await computing.client.list(CLUSTER_BINDINGS)).items}
            for name in self._workers:
                if name not in bound:
                    await self._join(name, computing, demo_objects.lease(name))

    async def show_reclaim(self) -> tuple[str, datetime, datetime]:
        """Schedule a short break in the last worker's time window; return worker, start and end."""
        name = list(self._workers)[-1]
        closes, opens = demo_objects.next_break(self._clock.now())
        async with AsyncExitStack() as stack:
            computing = self._applier("computing", self._computing, stack)
            await self._bind(name, computing, stack, demo_objects.with_break(name, closes, opens))
        return name, closes, opens

    # Steps

    async def _install(self, computing: Applier) -> None:
        with self._progress.task("installing Kubeocean") as task:
            await computing.apply_all(self._objects())
            port = urlsplit(KubeconfigAccess(self._computing).current().server).port or 443
            for service in demo_objects.landmarks(port):
                await _place(computing, service)
            await self._until(
                partial(manager_state, computing, manager_deployment(self._values)),
                "the manager did not start",
                task.say,
            )

    async def _part(self, computing: Applier) -> None:
        """Unbind workers of an earlier start that this start does not have."""
        for binding in (await computing.client.list(CLUSTER_BINDINGS)).items:
            if binding.name in self._workers or not _WORKER.fullmatch(binding.name):
                continue
            with self._progress.task(f"unbinding {binding.name}") as task:
                leave = Leave(binding.name, computing, domain=self._domain, clock=self._clock)
                await leave.unbind(patience_s=_PARTING_S, force=True, say=task.say)
                await leave.forget(lambda body, fate: None)

    async def _join(self, name: str, computing: Applier, lease: PolicySpec) -> None:
        with self._progress.task(f"joining {name}") as task:
            async with AsyncExitStack() as stack:
                worker = await self._bind(name, computing, stack, lease)
                lends = self._shape.nodes > 0
                look = partial(
                    worker_state, name, computing, worker, domain=self._domain, lends=lends
                )
                await self._until(look, f"{name} was not joined", task.say)
            # Conditions may be from before a restart; check the running program.
            for deployment in (syncer_deployment, proxier_deployment):
                program = deployment(name, self._domain)
                rolled = partial(_rolled, program, computing, self._domain.system_namespace)
                await self._until(rolled, f"{program} did not start", task.say)
            if lends:
                lent = partial(_lent, name, computing, self._shape)
                await self._until(lent, f"{name} does not lend its nodes", task.say)

    async def _bind(
        self, name: str, computing: Applier, stack: AsyncExitStack, lease: PolicySpec
    ) -> Applier:
        worker = self._applier(name, self._workers[name], stack)
        access = KubeconfigAccess(self._workers[name]).current()
        joining = JoinRequest(name=name, lease=lease, worker=WorkerValues(domain=self._domain))
        await Join(joining, computing, worker, access, clock=self._clock).run()
        return worker

    async def _show(self, computing: Applier) -> None:
        sample = demo_objects.sample(len(self._workers), self._domain)
        with self._progress.task("starting the sample") as task:
            try:
                await computing.client.get(_DEPLOYMENTS, *reversed(demo_objects.SAMPLE))
            except NotFound:  # an object that a user changed is left alone
                await computing.apply(sample)
            look = partial(
                _rolled, demo_objects.SAMPLE.name, computing, demo_objects.SAMPLE.namespace
            )
            await self._until(look, "the sample is not running", task.say)

    async def _until(
        self, look: Callable[[], Awaitable[State]], failure: str, say: Callable[[str], None]
    ) -> None:
        patience_s = _PATIENCE_S + _NODE_S * self._shape.nodes * self._shape.workers
        state = await settle(look, patience_s=patience_s, clock=self._clock, say=say)
        if not state.done:
            raise LocalError(f"{failure} within {patience_s:g} s: {state.message}")

    def _applier(self, name: str, kubeconfig: Path, stack: AsyncExitStack) -> Applier:
        client = connect(kubeconfig, cluster=name, field_manager=FIELD_MANAGER)
        stack.push_async_callback(client.close)
        # These clusters belong to the demo: fields of other managers are overwritten.
        return Applier(client, domain=self._domain, force=True)

    def _objects(self) -> list[Json]:
        """Return the objects of the installation; its namespace is annotated as local."""
        objects = computing_objects(self._values)
        for body in objects:
            if (body["kind"], body["metadata"]["name"]) == ("Namespace", self._values.namespace):
                body["metadata"]["annotations"] = {self._domain.local_ocean: TRUE}
        return objects


async def _place(computing: Applier, service: Json) -> None:
    """Apply a Service, and write its status as a load balancer would."""
    await computing.apply({name: part for name, part in service.items() if name != "status"})
    meta = service["metadata"]
    await computing.client.patch(
        SERVICES,
        meta["name"],
        MergePatch({"status": service["status"]}),
        meta["namespace"],
        subresource="status",
    )


async def _rolled(name: str, computing: Applier, namespace: str) -> State:
    try:
        deployment = await computing.client.get(_DEPLOYMENTS, name, namespace, keep_raw=True)
    except NotFound:
        return State(f"{name} does not exist yet")
    return rollout(deployment.content())


async def _lent(binding: str, computing: Applier, shape: Shape) -> State:
    labels = f"{shape.domain.cluster_binding}={label_value(binding)}"
    nodes = (await computing.client.list(NODES, labels=labels)).items
    ready = sum(_takes_pods(node) for node in nodes)
    return State(f"{ready} of {shape.nodes} virtual nodes are Ready", ready >= shape.nodes)


def _takes_pods(node: Node) -> bool:
    """Return whether a node is Ready and without the not-ready taint."""
    condition = find_condition(node.status.conditions, "Ready")
    ready = condition is not None and condition.status == "True"
    return ready and not any(taint.key in _NOT_YET for taint in node.spec.taints or ())


def _first(error: Exception) -> Exception:
    """Return the first exception of a (nested) exception group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
