"""Containers of a pod as processes: restarts with backoff, and HTTP probes.

A program that ends is restarted after a delay that doubles. The state of a container is in `known`,
and `changed` is called with each change. Only HTTP probes are supported; certificates are not
verified, as in a kubelet. Until the first success a probe runs more often than its period, to
shorten the start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from kubeocean.errors import LocalError
from kubeocean.local import ports
from kubeocean.local.process import Process
from kubeocean.local.process_node.programs import PodPlace, listens, program
from kubeocean.local.process_node.status import ContainerState
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.objects import Json

__all__ = ["ContainerRun", "Probe", "ask", "probe"]

_EAGER_S: Final = 0.25
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe of a container: URL, period, and failure threshold."""

    url: str
    every_s: float = 10.0
    delay_s: float = 0.0
    failures: int = 3
    timeout_s: float = _TIMEOUT_S

    @property
    def eager_s(self) -> float:
        """Seconds between two probes until the first success."""
        return min(self.every_s, _EAGER_S)


def probe(container: Json, kind: str, address: str, ports: Mapping[int, int]) -> Probe | None:
    """Return a container's probe of a kind such as `readinessProbe`; None if it has none.

    `ports` maps the ports of the container to those that its program listens on.
    """
    probe_spec = container.get(kind) or {}
    get = probe_spec.get("httpGet")
    if get is None:
        return None
    named = {each.get("name"): each["containerPort"] for each in container.get("ports") or ()}
    named_port = get["port"]
    port = int(named.get(named_port, named_port if str(named_port).isdigit() else 0))
    scheme = str(get.get("scheme") or "HTTP").lower()
    return Probe(
        f"{scheme}://{address}:{ports.get(port, port)}{get.get('path') or '/'}",
        every_s=float(probe_spec.get("periodSeconds") or 10),
        delay_s=float(probe_spec.get("initialDelaySeconds") or 0),
        failures=int(probe_spec.get("failureThreshold") or 3),
        timeout_s=max(_TIMEOUT_S, float(probe_spec.get("timeoutSeconds") or 1)),
    )


async def ask(session: aiohttp.ClientSession, probe: Probe) -> bool:
    """Send the HTTP request of a probe; return whether the probe succeeded."""
    limit = aiohttp.ClientTimeout(total=probe.timeout_s)
    try:
        # ssl=False: a kubelet does not check either, and the certificate is for other callers.
        async with session.get(probe.url, timeout=limit, ssl=False) as answer:
            await answer.read()
            return 200 <= answer.status < 400
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


_PAUSE_S: Final = 1.0
_LONGEST_S: Final = 60.0
_STEADY_S: Final = 60.0  # a run of this length resets the back-off
_BACK_OFF: Final = "CrashLoopBackOff"


class ContainerRun:
    """Runs a container of `pod` as a process; its own variables win over those in `base`."""

    def __init__(
        self,
        known: ContainerState,
        container: Json,
        pod: Json,
        place: PodPlace,
        *,
        base: Mapping[str, str],
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.known = known
        self.log = place.root / f"{container['name']}.log"
        self.grace_s = float(pod["spec"].get("terminationGracePeriodSeconds") or 30)
        self._container = container
        self._pod = pod
        self._place = place
        self._base = base
        self._changed = changed
        self._clock = clock
        self._ports: dict[int, int] = {}
        self._process: Process | None = None

    async def run(self) -> None:
        """Run the container's program until it ends or is cancelled; leave no process.

        The program is restarted by the restartPolicy of its pod.
        """
        pause_s = _PAUSE_S
        policy = self._pod["spec"].get("restartPolicy", "Always")
        try:
            while True:
                began = self._clock.monotonic()
                code = await self._once()
                self.known.end(code, self._now())
                if policy == "Never" or (policy == "OnFailure" and code == 0):
                    self.known.over = True
                    return self._changed()
                if self._clock.monotonic() - began > _STEADY_S:
                    pause_s = _PAUSE_S
                self.known.reason = _BACK_OFF
                self.known.message = f"ended with exit code {code}; back-off {pause_s:g} s"
                self._changed()
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_S)
                self.known.restarts += 1
        finally:
            await self._end()

    async def _once(self) -> int:
        """Run the container's program once and return its exit code."""
        try:
            process = await self._start()
        except (LocalError, OSError) as error:
            self._note(str(error))
            self.known.started_at = self._now()
            return 128
        self.known.started_at, self.known.reason, self.known.message = self._now(), "", ""
        ready, lives = (self._probe(f"{kind}Probe") for kind in ("readiness", "liveness"))
        self.known.ready = ready is None
        self._changed()
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            asking = [
                group.create_task(task)
                for task in (
                    *((self._follow(session, ready),) if ready else ()),
                    *((self._guard(session, lives),) if lives else ()),
                )
            ]
            code = await process.wait()
            for task in asking:
                task.cancel()
        return code

    async def _start(self) -> Process:
        default_ports = listens(self._container)
        # The address is this pod's alone, but other programs may listen on all addresses.
        with ports.reserve(
            *((self._place.address, port) for port in default_ports.values())
        ) as held:
            given = dict(zip(default_ports, held.ports, strict=True))
        self._ports = {port: given[flag] for flag, port in default_ports.items()}
        made = program(self._container, self._pod, self._place, given)
        self._process = Process(
            self.known.name,
            made.argv,
            log=self.log,
            env={**self._base, **made.env},
            cwd=self._place.root,
        )
        await self._process.start()
        return self._process

    async def _end(self) -> None:
        if self._process is None or not self._process.running:
            return
        code = await self._process.stop(within_s=self.grace_s)
        self.known.end(code or 0, self._now())

    # Probes

    def _probe(self, kind: str) -> Probe | None:
        return probe(self._container, kind, self._place.address, self._ports)

    async def _follow(self, session: aiohttp.ClientSession, probe: Probe) -> None:
        """Probe the container's readiness until cancelled, and report each change."""
        bad = 0
        while True:
            good = await ask(session, probe)
            bad = 0 if good else bad + 1
            ready = good or (self.known.ready and bad < probe.failures)
            if ready != self.known.ready:
                self.known.ready = ready
                self._changed()
            await self._clock.sleep(probe.every_s if ready else probe.eager_s)

    async def _guard(self, session: aiohttp.ClientSession, probe: Probe) -> None:
        """Stop the container's program when its liveness probe fails."""
        await self._clock.sleep(probe.delay_s)
        bad = 0
        while bad < probe.failures:
            await self._clock.sleep(probe.every_s)
            bad = 0 if await ask(session, probe) else bad + 1
        if self._process is not None:
            self._note(f"its liveness probe failed {bad} times: it is started again")
            await self._process.stop(within_s=self.grace_s)

    def _note(self, line: str) -> None:
        """Append a line to the log of the container."""
        with contextlib.suppress(OSError), self.log.open("a") as log:
            log.write(f"{line}\n")

    def _now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
