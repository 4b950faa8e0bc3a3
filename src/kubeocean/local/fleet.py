"""Fleet: the computing cluster as the hub of a fleet, with the workers as its members.

The hub and the agent of each member are processes of this machine. Each of them has the permissions
that an installation grants its ServiceAccount, by a client certificate with the account's name. A
process that ends is started again.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Final

from kubeocean.api.fleet.clusters import MEMBER_CLUSTERS
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.errors import LocalError
from kubeocean.fleet.health import stored_instant
from kubeocean.fleet.member import ENV_MEMBER_NAME
from kubeocean.inspect.fleet.clusters import MemberClusterView, cluster_views
from kubeocean.install.apply import FIELD_MANAGER, Applier
from kubeocean.install.fleet import (
    HUB_ACCOUNT,
    MEMBER_ACCOUNT,
    hub_objects,
    identity_name,
    member_cluster,
    member_identity,
    member_objects,
)
from kubeocean.install.wait import State, settle
from kubeocean.local.files import private_directory
from kubeocean.local.ocean import Ocean
from kubeocean.local.process import Process
from kubeocean.local.progress import Progress, Silence
from kubeocean.runtime.client import connect
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.objects import Json

__all__ = ["LOGS", "LocalFleet", "install_fleet", "until_joined"]

LOGS: Final = "fleet"  # the directory of logs in the data of an ocean
_HEARTBEAT_S: Final = 15
_PATIENCE_S: Final = 120.0
_AGAIN_S: Final = 1.0  # until a process that has ended is started again, twice as long each time
_AGAIN_AT_MOST_S: Final = 30.0
_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")
_WORKER: Final = re.compile(r"worker-[0-9]+")
# One replica of each, without metrics.
_ALONE: Final = (
    "--leader-elect=false",
    "--metrics-bind-address=0",
    "--health-probe-bind-address=0",
)
# Changes are placed at once, members of an earlier start are removed after a short wait for an
# agent, and no webhooks are registered, because the process has no Service.
_HUB_FLAGS: Final = (
    "--enable-webhook=false",
    "--resource-snapshot-creation-minimum-interval=0s",
    "--resource-changes-collection-duration=0s",
    "--force-delete-wait-time=30s",
)


class LocalFleet:
    """The hub and member agents of a running `Ocean`; `ready` is set once all workers joined."""

    def __init__(
        self, ocean: Ocean, *, progress: Progress | None = None, clock: Clock | None = None
    ) -> None:
        self._ocean = ocean
        self._progress = progress or Silence()
        self._clock = clock or RealClock()
        self._logs = ocean.root / LOGS
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Run the hub and all agents until cancelled.

        :raises LocalError: a worker does not join in time.
        """
        private_directory(self._logs)
        kubeconfigs = {cluster.name: cluster.kubeconfig for cluster in self._ocean.workers}
        computing, began = self._ocean.computing.kubeconfig, self._clock.now()
        async with asyncio.TaskGroup() as group:
            with self._progress.task("starting the fleet") as task:
                await install_fleet(computing, kubeconfigs, self._ocean.shape.domain)
                for process in self._processes():
                    group.create_task(self._keep_running(process))
                await until_joined(
                    computing, kubeconfigs, self._clock, task.say, self._logs, since=began
                )
            self.ready.set()

    def _processes(self) -> list[Process]:
        computing = self._ocean.computing
        hub = self._process(
            "hub", f"--kubeconfig={computing.user(_account(HUB_ACCOUNT))}", *_HUB_FLAGS
        )
        agents = (
            self._process(
                "member",
                f"--kubeconfig={worker.user(_account(MEMBER_ACCOUNT))}",
                f"--hub-kubeconfig={computing.user(_account(identity_name(worker.name)))}",
                member=worker.name,
            )
            for worker in self._ocean.workers
        )
        return [hub, *agents]

    def _process(self, command: str, *flags: str, member: str = "") -> Process:
        environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        if member:
            environ[ENV_MEMBER_NAME] = member
        name = member or command
        # -P: modules in the working directory are not imported.
        domain = f"--label-domain={self._ocean.shape.domain.name}"
        words = [sys.executable, "-P", "-m", "kubeocean", "fleet", command, domain, *_ALONE, *flags]
        return Process(name, words, log=self._logs / f"{name}.log", env=environ)

    async def _keep_running(self, process: Process) -> None:
        delay_s = _AGAIN_S
        try:
            while True:
                began = self._clock.monotonic()
                await process.start()
                await process.wait()
                if self._clock.monotonic() - began > _AGAIN_AT_MOST_S:
                    delay_s = _AGAIN_S
                await self._clock.sleep(delay_s)
                delay_s = min(2 * delay_s, _AGAIN_AT_MOST_S)
        finally:
            await process.stop()


async def install_fleet(
    computing: Path, workers: Mapping[str, Path], domain: Domain = DEFAULT
) -> None:
    """Install the hub's objects in the computing cluster, and make each worker a member.

    MemberClusters of workers that no longer exist are deleted, and the hub removes their objects.

    :raises ApiError: an object cannot be written.
    """
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        hub = _applier(computing, "computing", stack, domain)
        for name, kubeconfig in workers.items():
            member = _applier(kubeconfig, name, stack, domain)
            group.create_task(_apply(member, member_objects(domain)))
        members = [
            body
            for name in workers
            for body in (
                member_identity(name, domain),
                member_cluster(name, heartbeat_s=_HEARTBEAT_S),
            )
        ]
        await _apply(hub, [*hub_objects(domain), *members])
        for stored in (await hub.client.list(MEMBER_CLUSTERS)).items:
            if stored.name not in workers and _WORKER.fullmatch(stored.name):
                await hub.client.delete(MEMBER_CLUSTERS, stored.name, uid=stored.uid)


async def until_joined(
    computing: Path,
    workers: Collection[str],
    clock: Clock,
    say: Callable[[str], None],
    logs: Path,
    *,
    since: datetime | None = None,
) -> None:
    """Return when all workers are healthy members, with a heartbeat after `since` if given.

    :raises LocalError: a worker is not a healthy member in time.
    """
    client = connect(computing, cluster="computing")
    # Heartbeats are stored in whole seconds.
    earliest = since.replace(microsecond=0) if since is not None else None

    def is_member(view: MemberClusterView) -> bool:
        heartbeat = stored_instant(view.last_heartbeat)
        is_new = earliest is None or (heartbeat is not None and heartbeat >= earliest)
        return view.state == "Joined" and view.healthy == "True" and is_new

    async def look() -> State:
        views = cluster_views((await client.list(MEMBER_CLUSTERS)).items, clock.now())
        joined = {view.name for view in views if is_member(view)}
        missing = sorted(set(workers) - joined)
        return State(f"waiting for {', '.join(missing)}" if missing else "joined", not missing)

    try:
        state = await settle(look, patience_s=_PATIENCE_S, clock=clock, say=say)
    finally:
        await client.close()
    if not state.done:
        raise LocalError(
            f"the workers did not join the fleet within {_PATIENCE_S:g} s: {state.message};"
            f" the logs of the hub and of the agents are in {logs}"
        )


async def _apply(applier: Applier, objects: Sequence[Json]) -> None:
    """Apply CustomResourceDefinitions concurrently, and then the other objects in order."""
    kind = CUSTOM_RESOURCE_DEFINITIONS.kind
    definitions = [body for body in objects if body["kind"] == kind]
    async with asyncio.TaskGroup() as group:
        for body in definitions:
            group.create_task(applier.apply_all([body]))
    for body in objects:
        if body["kind"] != kind:
            await applier.apply(body)


def _applier(kubeconfig: Path, cluster: str, stack: AsyncExitStack, domain: Domain) -> Applier:
    client = connect(kubeconfig, cluster=cluster, field_manager=FIELD_MANAGER)
    stack.push_async_callback(client.close)
    return Applier(client, domain=domain, force=True)


def _account(name: str) -> str:
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:{name}"
