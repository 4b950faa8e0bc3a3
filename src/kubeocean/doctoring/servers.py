"""Checks of an API server, whichever cluster's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from kubeocean.api.crds import definitions
from kubeocean.doctoring.facts import Server
from kubeocean.doctoring.findings import Finding, Severity
from kubeocean.manager.findings import OLDEST, release_of
from kubeocean.runtime.objects import Json

__all__ = ["check_clock", "check_definitions", "check_version"]

_NOTICED: Final = timedelta(seconds=5)
_HARMFUL: Final = timedelta(seconds=30)  # windows and leases go by clocks


def check_definitions(check: str, about: str, server: Server, remedy: str) -> Iterator[Finding]:
    """Our kinds are there, served, and know all that we write."""
    ours = {each["metadata"]["name"]: each for each in definitions()}
    for name, there in server.definitions.items():
        if there is None:
            said = f"the definition {name} is not installed"
            yield Finding(check, Severity.ERROR, about, said, remedy)
            continue
        conditions = (there.get("status") or {}).get("conditions") or []
        if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            said = f"the definition {name} is not served"
            yield Finding(check, Severity.ERROR, about, said, remedy)
        if lacks := sorted(_fields(ours[name]) - _fields(there)):
            shown = ", ".join(lacks[:5]) + (" and more" if len(lacks) > 5 else "")
            said = f"the definition {name} is an older one: it does not know {shown}"
            yield Finding(check, Severity.ERROR, about, said, remedy)


def _fields(definition: Json) -> set[str]:
    """The paths of all fields of all versions."""
    found: set[str] = set()
    for version in definition["spec"]["versions"]:
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        found |= set(_paths(schema, ""))
    return found


def _paths(schema: Json, prefix: str) -> Iterator[str]:
    for name, inner in (schema.get("properties") or {}).items():
        path = f"{prefix}{name}"
        yield path
        yield from _paths(inner, f"{path}.")
    if isinstance(items := schema.get("items"), dict):
        yield from _paths(items, prefix)


def check_version(check: str, about: str, server: Server) -> Iterator[Finding]:
    """Kubernetes is not older than what was tried."""
    if not server.version:
        return
    release, old = release_of(server.version)
    if old:
        said = f"Kubernetes {release} is older than {'.'.join(map(str, OLDEST))}"
        yield Finding(check, Severity.ERROR, about, said, "upgrade that cluster")


def check_clock(check: str, about: str, server: Server) -> Iterator[Finding]:
    """Its clock shows what ours does."""
    if server.skew is None or abs(server.skew) < _NOTICED:
        return
    seconds = server.skew.total_seconds()
    way = "ahead of" if seconds > 0 else "behind"
    said = f"its clock is {abs(seconds):.0f} s {way} this machine's"
    severity = Severity.ERROR if abs(server.skew) >= _HARMFUL else Severity.WARNING
    yield Finding(check, severity, about, said, "set both clocks by NTP: windows go by them")
