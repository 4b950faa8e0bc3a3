"""Pod runs: one pod of a process node, from its binding to its end.

First the pod's directory, volumes and account are created. Then its programs run, and each change
of their state is written to the pod's status. When the pod is deleted, its programs are ended
within its grace period, and only then the pod is removed from the API.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.api.group import DEFAULT, Domain
from kubeocean.errors import ApiError, Conflict, NotFound
from kubeocean.local.files import private_directory
from kubeocean.local.process_node.accounts import PodAccount
from kubeocean.local.process_node.containers import ContainerRun
from kubeocean.local.process_node.programs import PodPlace, refusal
from kubeocean.local.process_node.status import remembered, status, waiting
from kubeocean.local.process_node.volumes import Volume, volumes
from kubeocean.runtime.client import Client, StrategicPatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.kinds import PODS, Pod
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json

__all__ = ["Host", "PodRun", "directory_name"]

_AGAIN_S: Final = 0.5  # ConfigMaps and Secrets often arrive a moment after their pod
_TELL_AGAIN_S: Final = 2.0
_HURRY_S: Final = 10.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Properties of the process node that pods run on."""

    client: Client
    address: str
    server: str
    authority: bytes
    root: Path
    base: Mapping[str, str]
    clock: Clock
    domain: Domain = DEFAULT


class PodRun:
    """Runs one pod as processes; `update` changes its spec, `forget` marks it as deleted."""

    def __init__(self, pod: Pod, host: Host, address: str) -> None:
        self.uid = pod.uid
        self.key = pod.key
        self.address = address
        self.directory = host.root / directory_name(pod)
        self._host = host
        self._pod = pod
        self._wanted = pod.content()
        self._written: Json = self._wanted.get("status") or {}
        self._runs: list[ContainerRun] = []
        self._known = remembered(self._wanted)
        self._news = asyncio.Event()
        self._over = asyncio.Event()  # set when the pod is to end, or was deleted
        self._gone = False
        self.update(pod)

    @property
    def logs(self) -> dict[str, Path]:
        """Return the log files of the containers by name."""
        return {each.name: self.directory / f"{each.name}.log" for each in self._known}

    def update(self, pod: Pod) -> None:
        self._pod = pod
        grace_s = pod.metadata.deletion_grace_period_seconds
        if pod.deleting:
            for run in self._runs:
                run.grace_s = run.grace_s if grace_s is None else float(grace_s)
            self._over.set()

    def forget(self) -> None:
        self._gone = True
        self._over.set()

    async def run(self) -> None:
        """Run the pod until it is deleted or the task is cancelled; end its programs then."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._live()), group.create_task(self._write_changes())]
            try:
                await self._over.wait()
            except asyncio.CancelledError:  # the node ends, and waits for its pods
                for run in self._runs:
                    run.grace_s = min(run.grace_s, _HURRY_S)
                raise
            # The programs end first, so that their end is reported.
            await _ended(tasks[0])
            await _ended(tasks[1])
        if not self._gone:
            await self._remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Its life

    async def _live(self) -> None:
        if (self._pod.status.phase or "Pending") not in ("Pending", "Running"):
            return  # the pod has ended, and waits for its deletion
        if reason := refusal(self._wanted, self._host.domain):
            waiting(self._known, "ErrImagePull", reason)
            return self._news.set()
        private_directory(self.directory)
        host = self._host
        account = PodAccount(
            self._wanted,
            host.client,
            self.directory / "kubeconfig",
            server=host.server,
            authority=host.authority,
            clock=host.clock,
        )
        try:
            mounts = volumes(self._wanted, host.client, self.directory / "volumes")
        except LookupError as error:
            waiting(self._known, "CreateContainerConfigError", str(error.args[0]))
            return self._news.set()
        async with asyncio.TaskGroup() as group:
            for each in mounts.values():
                if isinstance(each, Volume):
                    group.create_task(each.run())
            await self._until_furnished(account, mounts)
            group.create_task(account.run())
            self._make(account, mounts)
            for run in self._runs:
                group.create_task(run.run())

    async def _until_furnished(
        self, account: PodAccount, mounts: Mapping[str, Volume | Path]
    ) -> None:
        self._news.set()
        while True:
            missing = [
                name
                for name, each in mounts.items()
                if isinstance(each, Volume) and not await each.ready()
            ]
            try:
                await account.renew()
                if not missing:
                    return
                message = f"volumes do not exist yet: {', '.join(missing)}"
            except ApiError as error:  # the server may not know yet that the pod runs on this node
                message = str(error)
            if message != self._known[0].message:
                waiting(self._known, "ContainerCreating", message)
                self._news.set()
            await self._host.clock.sleep(_AGAIN_S)

    def _make(self, account: PodAccount, mounts: Mapping[str, Volume | Path]) -> None:
        place = PodPlace(
            address=self.address,
            kubeconfig=account.path,
            root=self.directory,
            mounts={
                name: each.directory if isinstance(each, Volume) else each
                for name, each in mounts.items()
            },
        )
        for known, container in zip(self._known, self._wanted["spec"]["containers"], strict=True):
            run = ContainerRun(
                known,
                container,
                self._wanted,
                place,
                base=self._host.base,
                changed=self._news.set,
                clock=self._host.clock,
            )
            self._runs.append(run)

    # Status

    async def _write_changes(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._write()
            except (NotFound, Conflict):
                return  # the pod was deleted, or another pod has its name
            except ApiError as error:
                _log.warning("Could not write status of pod", pod=str(self.key), error=str(error))
                await self._host.clock.sleep(_TELL_AGAIN_S)
                self._news.set()

    async def _write(self) -> None:
        host = self._host
        now = host.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        new_status = status(
            self._known, self._written, address=self.address, host=host.address, now=now
        )
        if new_status == self._written:
            return
        await host.client.patch(
            PODS,
            self.key.name,
            StrategicPatch({"metadata": {"uid": self.uid}, "status": new_status}),
            self.key.namespace,
            subresource="status",
        )
        self._written = new_status

    async def _remove(self) -> None:
        """Write the pod's final status, and delete the pod from the API server."""
        client = self._host.client
        while True:
            try:
                if self._runs:
                    await self._write()
                await client.delete(
                    PODS, self.key.name, self.key.namespace, uid=self.uid, grace_s=0
                )
                return
            except (NotFound, Conflict):
                return
            except ApiError as error:
                _log.warning("Could not delete pod", pod=str(self.key), error=str(error))
                await self._host.clock.sleep(_TELL_AGAIN_S)


def directory_name(pod: Pod) -> str:
    """Return the name of a pod's directory below that of its node."""
    return f"{pod.namespace}_{pod.name}_{pod.uid}"


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, also if the caller is cancelled meanwhile."""
    task.cancel()
    await asyncio.wait([task])
