"""Cluster: one real Kubernetes control plane on this machine.

`start` starts etcd, kube-apiserver and, if asked for, controller-manager and scheduler, and
returns when they serve; `stop` ends them in the reverse order. All files are under `root`: data,
certificates, kubeconfigs, logs, and the port, so that a later `start` on the same root starts the
same cluster. The processes end with the process that started them.

Components can be killed, paused and restarted one by one, on the same data and the same port.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kubeocean.errors import AlreadyExists, LocalError
from kubeocean.local import accounts, layout, ports
from kubeocean.local.audit import Audit
from kubeocean.local.components import (
    COMPONENTS,
    ControlPlanePlan,
    Ports,
    check_components,
    command,
)
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.pki import LocalAuthority, LocalIdentity, Subject
from kubeocean.local.process import Process
from kubeocean.local.readiness import ReadinessProbe, failure, until_ready
from kubeocean.runtime.client import Client, connect
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.components import Lifespan
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.runtime.transport import Transport

__all__ = ["Cluster", "Programs"]

_READY_S = 60.0  # an idle machine needs three seconds; a build at the same time slows it down
_STOP_S = 15.0
_START_TRIES = 3
_WATCH_EVERY_S = 0.5
_PORT_TAKEN = "address already in use"
# Programs also read settings from variables (etcd: ETCD_*), and local servers need no proxies.
_ENVIRONMENT = ("HOME", "LANG", "PATH", "TMPDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT")


class Programs(Protocol):
    """Source of the executables of a control plane."""

    def path(self, name: str) -> Path:
        """Return the path of the executable `name`."""


class Cluster(Lifespan):
    """A Kubernetes control plane on this machine; `async with` starts and stops its components.

    `port` is the API server's; 0 chooses a free port once and keeps that. `ephemeral`
    trades durability for speed: the data may be lost when the machine crashes.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        assets: Programs,
        *,
        components: Sequence[str] = COMPONENTS,
        port: int = 0,
        listen: str = "127.0.0.1",
        sans: Sequence[str] = (),
        audit: bool = False,
        ephemeral: bool = False,
        feature_gates: Mapping[str, bool] | None = None,
        extra_args: Mapping[str, Sequence[str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.root = root.absolute()
        self._assets = assets
        self._fixed_port = port
        self._clock = clock or RealClock()
        self._lock = layout.RootLock(self.root)
        self._authority: LocalAuthority | None = None
        self._processes: dict[str, Process] = {}
        self._asked_to_end: set[str] = set()
        self._plan = ControlPlanePlan(
            name=name,
            root=self.root,
            components=check_components(components),
            ports=Ports(api=port),
            listen=listen,
            sans=tuple(sans),
            audit=audit,
            ephemeral=ephemeral,
            feature_gates=dict(feature_gates or {}),
            extra_args=dict(extra_args or {}),
        )

    @property
    def components(self) -> tuple[str, ...]:
        return self._plan.components

    @property
    def server(self) -> str:
        """The URL of the API server; known once the cluster has started."""
        return self._plan.server

    @property
    def kubeconfig(self) -> Path:
        """Path of an administrator's kubeconfig."""
        return self._plan.admin_kubeconfig

    @property
    def authority(self) -> LocalAuthority:
        """The certificate authority of the cluster, for client and serving certificates."""
        if self._authority is None:
            raise LocalError(f"cluster {self.name} was not started")
        return self._authority

    @property
    def audit_log(self) -> Path:
        return self._plan.audit_log

    @property
    def audit(self) -> Audit:
        """The requests that the API server answered; empty unless started with `audit`."""
        return Audit(self._plan.audit_log)

    def process(self, component: str) -> Process:
        """Return the process of a component; the cluster must have been started."""
        try:
            return self._processes[component]
        except KeyError:
            raise LocalError(f"cluster {self.name} has no component {component}") from None

    # Start and stop.

    async def start(self) -> None:
        """Start all components; return when they serve.

        :raises LocalError: a component does not become ready; started ones are stopped again.
        """
        self._take_root()
        try:
            await self._start_with_retries()
        except OSError as error:
            await self.stop()
            raise self._refused(error) from error
        except BaseException:
            await self.stop()
            raise

    def _take_root(self) -> None:
        """Create and lock the root directory, so that no other process uses it."""
        try:
            private_directory(self.root)
            self._lock.acquire()
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> LocalError:
        """Return the error for a root directory that cannot be used."""
        return LocalError(f"could not start cluster {self.name}: {error}")

    async def _start_with_retries(self) -> None:
        for tries_left in reversed(range(_START_TRIES)):
            try:
                await self._start_on_ports(self._choose_ports())
                return
            except LocalError as error:
                if not tries_left or not self._lost_a_port(error):
                    raise
                await self._stop_all()

    async def stop(self) -> None:
        """Stop all components in the reverse order of their start."""
        await self._stop_all()
        self._lock.release()

    async def _stop_all(self) -> None:
        self._asked_to_end.update(self.components)
        for component in reversed(self.components):
            if component in self._processes:
                await self._processes[component].stop(within_s=_STOP_S)

    def _choose_ports(self) -> ports.Reserved:
        """Reserve the ports of the last start if free, else others; put them into the plan."""
        fixed, listen = self._fixed_port, self._plan.listen
        if fixed and (reason := ports.why_not(fixed, listen)):
            raise LocalError(f"could not start cluster {self.name}: {reason}")
        saved = layout.load_ports(self.root)
        if fixed:
            saved = saved._replace(api=fixed)
        held = ports.reserve((listen, saved.api), *(("127.0.0.1", port) for port in saved[1:]))
        self._plan = replace(self._plan, ports=Ports(*held.ports))
        return held

    async def _start_on_ports(self, held: ports.Reserved) -> None:
        with held:
            old = layout.load_ports(self.root)
            self._authority = layout.prepare(self._plan)
            if old.api != self._plan.ports.api:
                layout.move_server(self._plan, old)
            layout.save_ports(self._plan)
            self._processes = {name: self._new_process(name) for name in self.components}
            self._asked_to_end = set(self.components)
        for component in self.components[:2]:
            await self._launch(component)
            await self._until_ready(component)
        for component in self.components[2:]:
            await self._launch(component)
        for component in self.components[2:]:
            await self._until_ready(component)

    def _lost_a_port(self, error: LocalError) -> bool:
        """Return whether another process took a reserved port before the component started."""
        fixed = f":{self._fixed_port}: bind: {_PORT_TAKEN}"
        return _PORT_TAKEN in str(error) and fixed not in str(error)

    def _new_process(self, component: str) -> Process:
        return Process(
            component,
            [self._assets.path(component), *command(self._plan, component)],
            log=self._plan.logs / f"{component}.log",
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            cwd=self.root,
        )

    async def _launch(self, component: str) -> None:
        await self.process(component).start()
        self._asked_to_end.discard(component)

    async def _until_ready(self, component: str) -> None:
        identity = "etcd-client" if component == "etcd" else "admin"
        async with ReadinessProbe(self._plan.pki, identity=identity) as probe:
            await until_ready(
                self.process(component),
                lambda: self._serves(component, probe),
                what=f"{component} of cluster {self.name}",
                within_s=_READY_S,
                clock=self._clock,
            )

    async def _serves(self, component: str, probe: ReadinessProbe) -> bool:
        servers = self.components[:2]
        for needed in itertools.takewhile(lambda name: name != component, servers):
            self._check(needed)  # an API server would wait a minute for an etcd that has ended
        serves = await probe.ok(self._plan.health(component))
        if serves and component == "kube-controller-manager":
            # The controller manager creates it first; pods can be created from then on.
            path = SERVICE_ACCOUNTS.path("default", "default")
            return await probe.ok(self.server + path)
        return serves

    async def watch(self) -> None:
        """Wait until a component ends unexpectedly, and raise; never return.

        :raises LocalError: a component ended; the text has the end of its log.
        """
        while True:
            self.check()
            await self._clock.sleep(_WATCH_EVERY_S)

    def check(self) -> None:
        """Check that all components run.

        :raises LocalError: a component ended unexpectedly.
        """
        for component in self._processes:
            self._check(component)

    def _check(self, component: str) -> None:
        process = self._processes[component]
        if not process.running and component not in self._asked_to_end:
            what = f"{component} of cluster {self.name}"
            raise failure(process, f"{what} ended with exit code {process.returncode}")

    # One component.

    async def kill(self, component: str) -> None:
        """Kill a component with SIGKILL."""
        self._asked_to_end.add(component)
        await self.process(component).kill()

    def pause(self, component: str) -> None:
        """Pause a component (SIGSTOP); its connections stay open."""
        self.process(component).pause()

    def resume(self, component: str) -> None:
        """Resume a paused component (SIGCONT)."""
        self.process(component).resume()

    async def restart(self, component: str) -> None:
        """Stop a component if it runs, and start it with the same data and the same port."""
        self._asked_to_end.add(component)
        await self.process(component).stop(within_s=_STOP_S)
        await self._launch(component)
        await self._until_ready(component)

    # Users.

    def user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Return the kubeconfig of a new user with a client certificate; no role is bound to it."""
        identity = self.authority.issue(Subject(name, tuple(groups), client=True))
        return self._write_user(name, identity, "default")

    async def service_account(self, namespace: str, name: str, *, expires_s: int = 86_400) -> Path:
        """Return a kubeconfig with a token of a ServiceAccount, which is created if necessary."""
        client = self.client()
        try:
            with contextlib.suppress(AlreadyExists):
                await client.create(
                    SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace
                )
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": expires_s},
            }
            answer = await client.post(SERVICE_ACCOUNTS, name, "token", body, namespace)
        finally:
            await client.close()
        user = f"system:serviceaccount:{namespace}:{name}"
        return self._write_user(user, answer["status"]["token"], namespace)

    def _write_user(self, user: str, credential: LocalIdentity | str, namespace: str) -> Path:
        content = accounts.kubeconfig(
            self.name,
            self.server,
            self.authority.certificate,
            user=user,
            credential=credential,
            namespace=namespace,
        )
        return write_private(self._plan.users / accounts.file_name(user), content)

    def client(
        self,
        *,
        wrap: Callable[[Transport], Transport] | None = None,
        kubeconfig: Path | None = None,
    ) -> Client:
        """Return a client of the API server with the administrator's or another kubeconfig."""
        return connect(kubeconfig or self.kubeconfig, cluster=self.name, wrap=wrap)
