"""A binding that several syncers share, each a process of its own; one of them is killed.

Their work is read from the audit logs of both API servers and from the objects in the end: every
virtual pod has one physical pod, which was created once.
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
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.errors import ConfigError
from kubeocean.local.audit import AuditedRequest
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, NODES, SECRETS, Node
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.names import Names
from kubeocean.sharding.table import name_of
from kubeocean.sharding.table_operations import freeze
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS, PhysicalPod
from support.background import running
from support.pod_env import PodEnv, make_namespace, usable
from support.syncer_process import HASTY, SyncerProcess, syncer
from support.wait import until

__all__ = ["ShardedEnv", "prove"]

ADMINS = ("system:masters",)
AT_ONCE = 32
PERCENT = 100
LEASES = "kube-node-lease"
GATEWAY_TIMEOUT = 504


@dataclass
class ShardedEnv(PodEnv):
    """A binding whose nodes are lent by policy, and the syncers that share it."""

    replicas: dict[str, SyncerProcess] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    patience_s: float = 90.0

    async def open(self, *, direct: bool = True, **spec: object) -> None:
        self.namespace = f"v-{self.name}"
        await self.computing_api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        await make_namespace(self.worker_api, self.mount)
        await self._bind()
        await usable(self.computing_api, self.namespace)

    async def _bind(self) -> None:
        kubeconfig = self.worker.user(self.name, ADMINS).read_bytes()
        secret = {
            "metadata": {"name": self.name, "namespace": "default"},
            "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()},
        }
        await self.computing_api.create(SECRETS, secret)
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
        await self.computing_api.create(CLUSTER_BINDINGS, body)
        policy = {
            "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
            "kind": "ResourceLeasingPolicy",
            "metadata": {"name": self.name},
            "spec": {"cluster": self.name},
        }
        await self.worker_api.create(RESOURCE_LEASING_POLICIES, policy)

    # The syncers

    def user(self, name: str) -> str:
        """Return the user name of a replica in the computing cluster."""
        return f"{self.name}-{name}"

    @asynccontextmanager
    async def sharing(self, *names: str, directory: Path) -> AsyncIterator[None]:
        """Run replicas until the block ends."""
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
    def overseer(self) -> RingAdmin:
        ring = Names(naming.syncer_ring(self.name))
        return RingAdmin(self.computing_api, ring, namespace="default")

    async def freeze(self, on: bool) -> None:
        """Let only shards of failed replicas move; or let all shards move again."""
        await self.overseer.change(lambda state: freeze(state.table, on=on))

    async def shares(self) -> dict[str, int]:
        """Return the number of shards of each living replica, by name."""
        try:
            table = (await self.overseer.state()).table
        except ConfigError:
            return {}
        if table.draining():
            return {}
        return dict(Counter(name_of(entry.owner) for entry in table.entries))

    async def shared(self) -> None:
        """Wait until exactly the living replicas have shards."""

        async def fair() -> bool:
            for name, replica in self.replicas.items():
                assert replica.process.running, (name, replica.process.tail())
            return set(await self.shares()) == set(self.replicas)

        await until(fair, within=self.patience_s, waiting_for=f"{sorted(self.replicas)} to share")

    # The clusters

    async def vnodes(self) -> list[Node]:
        label = f"{self.domain.cluster_binding}={self.name}"
        return (await self.computing_api.list(NODES, labels=label)).items

    async def lent(self) -> None:
        """Wait until every node of the worker has its virtual node."""

        async def all_there() -> bool:
            return len(await self.vnodes()) == len(self.pnodes)

        await until(all_there, within=self.patience_s, every=0.3)

    async def settled(self, pods: int) -> None:
        """Wait until this many virtual pods run."""

        async def running_() -> bool:
            vpods = (await self.computing_api.list(VIRTUAL_PODS, self.namespace)).items
            up = sum(pod.status.phase == "Running" for pod in vpods)
            assert up == pods, f"{up} of {len(vpods)} run"
            return True

        await until(running_, within=self.patience_s, every=0.3, waiting_for=f"{pods} pods to run")

    # Audit logs

    def did(self, name: str, since: int = 0) -> list[AuditedRequest]:
        """Return the writes of a replica that the computing cluster accepted."""
        requests = self.computing.audit.requests(user=self.user(name), since=since)
        return [each for each in requests if each.verb in ("create", "patch") and each.code < 300]

    def worked_on(self, name: str, since: int = 0) -> tuple[set[str], set[str]]:
        """Return the pods and nodes that a replica wrote."""
        did = self.did(name, since)
        pods = {
            each.name for each in did if (each.resource, each.subresource) == ("pods", "status")
        }
        return pods, {each.name for each in did if each.namespace == LEASES}

    def created(self) -> Counter[str]:
        """Return how often the creation of each physical pod was answered with success."""
        return Counter(each.name for each in self._creations() if each.code < 300)

    def cut_off(self) -> set[str]:
        """Return the physical pods whose creation lost its client, killed before the answer.

        The API server records 504 for such a request, and may have created the object.
        """
        return {each.name for each in self._creations() if each.code == GATEWAY_TIMEOUT}

    def _creations(self) -> list[AuditedRequest]:
        return [
            each
            for each in self.worker.audit.requests()
            if (each.resource, each.subresource, each.verb) == ("pods", "", "create")
            and each.namespace == self.mount
        ]


class _Lags:
    """When each virtual pod was created, and when its physical pod was."""

    def __init__(self, env: ShardedEnv) -> None:
        self._env = env
        self.virtual: dict[str, float] = {}
        self.physical: dict[str, float] = {}
        self.cache = Informer(env.worker_api, PHYSICAL_PODS, namespace=env.mount)
        self.cache.on_change(self._changed)

    def _changed(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        if new is not None:
            name = new.annotations.get(self._env.domain.virtual_pod_name, "")
            self.physical.setdefault(name, time.monotonic())

    def of(self, since: float, before: float = float("inf")) -> list[float]:
        """Return the lags in seconds of the pods that were created in this time."""
        created = ((pod, at) for pod, at in self.virtual.items() if since <= at < before)
        return sorted(self.physical[pod] - at for pod, at in created)

    async def run(self, numbers: range, *, every_s: float) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            name = f"p{number}"
            async with limit:
                self.virtual[name] = time.monotonic()
                await self._env.run(name, node=number % len(self._env.pnodes))

        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(one(number))
                await asyncio.sleep(every_s)  # the rate at which a user creates pods


async def prove(
    env: ShardedEnv, directory: Path, *, pods: int, kill_after_s: float, every_s: float
) -> dict[str, float]:
    """Create half of the pods, then kill one replica while the other half is created.

    No pod is lost or created twice; the results contain the lags of pods.
    """
    half, lags = pods // 2, _Lags(env)
    async with env.sharing("one", "two", directory=directory), running(lags.cache):
        await lags.cache.synced()
        await env.lent()
        await env.shared()
        await env.freeze(True)  # otherwise shards may move when loads become known
        mark = env.computing.audit.mark()
        await lags.run(range(half), every_s=0)
        await env.settled(half)
        parts = _shards_are_disjoint(env, mark)
        await env.freeze(False)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(lags.run(range(half, pods), every_s=every_s))
            await asyncio.sleep(kill_after_s)  # so that the killed replica is at work
            killed = time.monotonic()
            await env.kill("one")
            await env.shared()
            taken_over_s = time.monotonic() - killed
        await env.settled(pods)
        await _renewed_by(env, "two")
    _check(env, await env.ppods(), pods)
    waited, calm = lags.of(killed), lags.of(0, began)
    return parts | {
        "pods created in fail-over": float(len(waited)),
        "lag p50 in fail-over s": _percentile(waited, 50),
        "lag p99 in fail-over s": _percentile(waited, 99),
        "lag worst in fail-over s": waited[-1],
        "lag p99 in peace s": _percentile(calm, 99),
        "taken over s": taken_over_s,
    }


def _shards_are_disjoint(env: ShardedEnv, mark: int) -> dict[str, float]:
    (pods_1, nodes_1), (pods_2, nodes_2) = (env.worked_on(name, mark) for name in ("one", "two"))
    assert not pods_1 & pods_2, "no pod was worked on by both"
    assert not nodes_1 & nodes_2, "no node lease was renewed by both"
    assert min(len(pods_1), len(pods_2)) > 0
    return {"pods of one": float(len(pods_1)), "pods of two": float(len(pods_2))}


async def _renewed_by(env: ShardedEnv, name: str) -> None:
    """Wait until a replica has renewed the lease of every node."""
    mark = env.computing.audit.mark()
    wanted = {node.name for node in await env.vnodes()}
    await until(lambda: env.worked_on(name, mark)[1] >= wanted, within=env.patience_s, every=1.0)


def _check(env: ShardedEnv, ppods: list[PhysicalPod], pods: int) -> None:
    """Check that each virtual pod has one physical pod, created once."""
    name = env.domain.virtual_pod_name
    assert Counter(pod.annotations[name] for pod in ppods) == Counter(
        f"p{number}" for number in range(pods)
    )
    created = env.created()
    assert set(created.values()) == {1}, created.most_common(3)
    assert {pod.metadata.name for pod in ppods} - set(created) <= env.cut_off()
    assert set(created) <= {pod.metadata.name for pod in ppods}


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=PERCENT)[percent - 1] if len(values) > 1 else values[0]
