"""A binding that several syncers share, each a process of its own; one of them is killed.

What they did is read from the audit logs of both API servers, and from what stands there in the
end: every virtual pod has one physical pod, which was created once.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES
from kubeocean.errors import ConfigError
from kubeocean.local.audit import AuditedRequest
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, NODES, SECRETS, Node
from kubeocean.sharding.names import Names
from kubeocean.sharding.operations import freeze
from kubeocean.sharding.overseer import Overseer
from kubeocean.sharding.table import name_of
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod
from podseas import PodSea, make_namespace, usable
from running import running
from syncers import HASTY, SyncerProcess, syncer
from waiting import until

__all__ = ["SharedSea", "prove"]

ADMINS = ("system:masters",)
AT_ONCE = 32
PERCENT = 100
LEASES = "kube-node-lease"


@dataclass
class SharedSea(PodSea):
    """A binding whose nodes are lent by policy, and the syncers that share it."""

    replicas: dict[str, SyncerProcess] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    patience_s: float = 90.0

    async def open(self, *, direct: bool = True, **spec: object) -> None:
        self.namespace = f"v-{self.name}"
        await self.above.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await make_namespace(self.below, self.mount)
        await self._bind()
        await usable(self.above, self.namespace)

    async def _bind(self) -> None:
        kubeconfig = self.worker.user(self.name, ADMINS).read_bytes()
        secret = {
            "metadata": {"name": self.name, "namespace": "default"},
            "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()},
        }
        await self.above.create(SECRETS, secret)
        terms = [{"key": "test", "operator": "In", "values": [self.name]}]
        body = {
            "apiVersion": CLUSTER_BINDINGS.api_version,
            "kind": "ClusterBinding",
            "metadata": {"name": self.name},
            "spec": {
                "clusterID": self.cluster_id,
                "secretRef": {"name": self.name, "namespace": "default"},
                "mountNamespace": self.mount,
                "directScheduling": True,
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": terms}]},
            },
        }
        await self.above.create(CLUSTER_BINDINGS, body)
        policy = {
            "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
            "kind": "ResourceLeasingPolicy",
            "metadata": {"name": self.name},
            "spec": {"cluster": self.name},
        }
        await self.below.create(RESOURCE_LEASING_POLICIES, policy)

    # The syncers

    def user(self, name: str) -> str:
        """As whom the computing cluster knows a replica."""
        return f"{self.name}-{name}"

    @asynccontextmanager
    async def sharing(self, *names: str, directory: Path) -> AsyncIterator[None]:
        """Replicas at work, until the block ends."""
        async with AsyncExitStack() as stack:
            for name in names:
                replica = syncer(
                    f"{self.name}-{name}",
                    f"--cluster-binding-name={self.name}",
                    "--sharding",
                    "--kubernetes-service-address=10.9.9.9:443",
                    "--dns-service-address=10.9.9.10",
                    *HASTY,
                    *self.flags,
                    kubeconfig=self.computing.user(self.user(name), ADMINS),
                    directory=directory,
                    POD_NAME=name,
                )
                self.replicas[name] = await stack.enter_async_context(replica)
            yield

    async def kill(self, name: str) -> None:
        await self.replicas.pop(name).process.kill()

    @property
    def overseer(self) -> Overseer:
        ring = Names(naming.syncer_ring(self.name))
        return Overseer(self.above, ring, namespace="default")

    async def freeze(self, on: bool) -> None:
        """Let nothing move but for the dead; or let it move again."""
        await self.overseer.change(lambda state: freeze(state.table, on=on))

    async def shares(self) -> dict[str, int]:
        """How many shards each living replica has, by name."""
        try:
            table = (await self.overseer.state()).table
        except ConfigError:
            return {}
        if table.draining():
            return {}
        return dict(Counter(name_of(entry.owner) for entry in table.entries))

    async def shared(self) -> None:
        """Wait until all that live have their part, and nobody else has."""

        async def fair() -> bool:
            for name, replica in self.replicas.items():
                assert replica.process.running, (name, replica.process.tail())
            return set(await self.shares()) == set(self.replicas)

        await until(fair, within=self.patience_s, what=f"{sorted(self.replicas)} to share")

    # The world

    async def vnodes(self) -> list[Node]:
        label = f"{self.domain.cluster_binding}={self.name}"
        return (await self.above.list(NODES, labels=label)).items

    async def lent(self) -> None:
        """Wait until every node of the worker has its virtual node."""

        async def all_there() -> bool:
            return len(await self.vnodes()) == len(self.pnodes)

        await until(all_there, within=self.patience_s, every=0.3)

    async def settled(self, pods: int) -> None:
        """Wait until so many pods run, as seen above."""

        async def running_() -> bool:
            found = (await self.above.list(VIRTUAL_PODS, self.namespace)).items
            up = sum(pod.status.phase == "Running" for pod in found)
            assert up == pods, f"{up} of {len(found)} run"
            return True

        await until(running_, within=self.patience_s, every=0.3, what=f"{pods} pods to run")

    # What was done

    def did(self, name: str, since: int = 0) -> list[AuditedRequest]:
        """The writes of a replica above that were carried out."""
        asked = self.computing.audit.requests(user=self.user(name), since=since)
        return [each for each in asked if each.verb in ("create", "patch") and each.code < 300]

    def worked_on(self, name: str, since: int = 0) -> tuple[set[str], set[str]]:
        """The pods and the nodes that a replica looked after."""
        did = self.did(name, since)
        pods = {
            each.name for each in did if (each.resource, each.subresource) == ("pods", "status")
        }
        return pods, {each.name for each in did if each.namespace == LEASES}

    def created(self) -> Counter[str]:
        """How often each physical pod was created."""
        return Counter(
            each.name
            for each in self.worker.audit.requests()
            if (each.resource, each.subresource, each.verb) == ("pods", "", "create")
            and each.namespace == self.mount
            and each.code < 300
        )


class _Lags:
    """When each pod was asked for, and when it was in the worker."""

    def __init__(self, sea: SharedSea) -> None:
        self._sea = sea
        self.asked: dict[str, float] = {}
        self.there: dict[str, float] = {}
        self.cache = Informer(sea.below, PHYSICAL_PODS, namespace=sea.mount)
        self.cache.on_change(self._changed)

    def _changed(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        if new is not None:
            name = new.annotations.get(self._sea.domain.virtual_pod_name, "")
            self.there.setdefault(name, time.monotonic())

    def of(self, since: float, before: float = float("inf")) -> list[float]:
        """The seconds that those had to wait who were asked for in this time."""
        asked = ((pod, at) for pod, at in self.asked.items() if since <= at < before)
        return sorted(self.there[pod] - at for pod, at in asked)

    async def run(self, numbers: range, *, every_s: float) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            name = f"p{number}"
            async with limit:
                self.asked[name] = time.monotonic()
                await self._sea.run(name, node=number % len(self._sea.pnodes))

        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(one(number))
                await asyncio.sleep(every_s)  # the rate at which a user asks


async def prove(
    sea: SharedSea, directory: Path, *, pods: int, kill_after_s: float, every_s: float
) -> dict[str, float]:
    """Half of the pods in peace; then one replica is killed while the other half comes.

    Nothing is lost and nothing done twice; how long pods had to wait is among the figures.
    """
    half, lags = pods // 2, _Lags(sea)
    async with sea.sharing("one", "two", directory=directory), running(lags.cache):
        await lags.cache.synced()
        await sea.lent()
        await sea.shared()
        await sea.freeze(True)  # else a part may move, rightly, as loads come to be known
        mark = sea.computing.audit.mark()
        await lags.run(range(half), every_s=0)
        await sea.settled(half)
        parts = _each_its_part(sea, mark)
        await sea.freeze(False)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(lags.run(range(half, pods), every_s=every_s))
            await asyncio.sleep(kill_after_s)  # what is killed is at work
            killed = time.monotonic()
            await sea.kill("one")
            await sea.shared()
            taken_over_s = time.monotonic() - killed
        await sea.settled(pods)
        await _renewed_by(sea, "two")
    _check(sea, await sea.ppods(), pods)
    waited, calm = lags.of(killed), lags.of(0, began)
    return parts | {
        "pods asked for in fail-over": float(len(waited)),
        "lag p50 in fail-over s": _percentile(waited, 50),
        "lag p99 in fail-over s": _percentile(waited, 99),
        "lag worst in fail-over s": waited[-1],
        "lag p99 in peace s": _percentile(calm, 99),
        "taken over s": taken_over_s,
    }


def _each_its_part(sea: SharedSea, mark: int) -> dict[str, float]:
    (pods_1, nodes_1), (pods_2, nodes_2) = (sea.worked_on(name, mark) for name in ("one", "two"))
    assert not pods_1 & pods_2, "no pod was worked on by both"
    assert not nodes_1 & nodes_2, "no node's heart was beaten by both"
    assert min(len(pods_1), len(pods_2)) > 0
    return {"pods of one": float(len(pods_1)), "pods of two": float(len(pods_2))}


async def _renewed_by(sea: SharedSea, name: str) -> None:
    """Wait until a replica has renewed the lease of every node."""
    mark = sea.computing.audit.mark()
    wanted = {node.name for node in await sea.vnodes()}
    await until(lambda: sea.worked_on(name, mark)[1] >= wanted, within=sea.patience_s, every=1.0)


def _check(sea: SharedSea, ppods: list[PhysicalPod], pods: int) -> None:
    """One physical pod for each virtual one, created once."""
    said = sea.domain.virtual_pod_name
    assert Counter(pod.annotations[said] for pod in ppods) == Counter(
        f"p{number}" for number in range(pods)
    )
    created = sea.created()
    assert len(created) == pods
    assert set(created.values()) == {1}, created.most_common(3)


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=PERCENT)[percent - 1] if len(values) > 1 else values[0]
