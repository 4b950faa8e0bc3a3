"""Pod probes: asking a program whether it lives and whether it may be sent work.

Only what is asked over HTTP is asked; a certificate is not looked at, as by a kubelet. Until a
program is ready for the first time it is asked often, whatever the probe says: people wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from kubeocean.runtime.objects import Json

__all__ = ["Probe", "ask", "probe"]

_EAGER_S: Final = 0.25
_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A question, how often it is asked, and how many bad answers in a row count."""

    url: str
    every_s: float = 10.0
    delay_s: float = 0.0
    failures: int = 3
    timeout_s: float = _TIMEOUT_S

    @property
    def eager_s(self) -> float:
        """How often it is asked while nobody has got a good answer."""
        return min(self.every_s, _EAGER_S)


def probe(container: Json, kind: str, address: str, ports: Mapping[int, int]) -> Probe | None:
    """A container's probe of a kind, such as `readinessProbe`; `ports` are where it really is."""
    said = container.get(kind) or {}
    get = said.get("httpGet")
    if get is None:
        return None
    named = {each.get("name"): each["containerPort"] for each in container.get("ports") or ()}
    wanted = get["port"]
    port = int(named.get(wanted, wanted if str(wanted).isdigit() else 0))
    scheme = str(get.get("scheme") or "HTTP").lower()
    return Probe(
        f"{scheme}://{address}:{ports.get(port, port)}{get.get('path') or '/'}",
        every_s=float(said.get("periodSeconds") or 10),
        delay_s=float(said.get("initialDelaySeconds") or 0),
        failures=int(said.get("failureThreshold") or 3),
        timeout_s=max(_TIMEOUT_S, float(said.get("timeoutSeconds") or 1)),
    )


async def ask(session: aiohttp.ClientSession, probe: Probe) -> bool:
    """Whether the answer is good."""
    limit = aiohttp.ClientTimeout(total=probe.timeout_s)
    try:
        # ssl=False: a kubelet does not check either, and the certificate is for other callers.
        async with session.get(probe.url, timeout=limit, ssl=False) as answer:
            await answer.read()
            return 200 <= answer.status < 400
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
