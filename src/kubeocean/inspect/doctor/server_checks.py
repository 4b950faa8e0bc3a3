"""Checks of an API server, of the computing cluster or of a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from kubeocean.api.crds import definitions
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.format import few
from kubeocean.inspect.snapshot import ServerSnapshot, require
from kubeocean.runtime.objects import Json
from kubeocean.worker_access.identity import OLDEST, release_of

__all__ = ["check_clock", "check_definitions", "check_version", "compare_definitions"]

_NOTICED: Final = timedelta(seconds=5)
_HARMFUL: Final = timedelta(seconds=30)  # windows and leases go by clocks


def check_definitions(
    check: str, about: str, server: ServerSnapshot, remedy: str
) -> Iterator[Finding]:
    """Check that our kinds are installed, served, and have all fields that we write."""
    yield from compare_definitions(check, about, require(server.definitions), definitions(), remedy)


def compare_definitions(
    check: str,
    about: str,
    definitions: Mapping[str, Json | None],
    shipped_definitions: Iterable[Json],
    remedy: str,
) -> Iterator[Finding]:
    """Compare a cluster's CustomResourceDefinitions, None if not installed, with ours."""
    shipped = {each["metadata"]["name"]: each for each in shipped_definitions}
    for name, installed in definitions.items():
        if installed is None:
            message = f"the definition {name} is not installed"
            yield Finding(Severity.ERROR, about, message, remedy, check=check)
            continue
        conditions = (installed.get("status") or {}).get("conditions") or []
        if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            message = f"the definition {name} is not served"
            yield Finding(Severity.ERROR, about, message, remedy, check=check)
        if lacks := sorted(_fields(shipped[name]) - _fields(installed)):
            message = f"the definition {name} is of an older version: it lacks {few(lacks)}"
            yield Finding(Severity.ERROR, about, message, remedy, check=check)


def _fields(definition: Json) -> set[str]:
    """Return the paths of all fields of all versions of a CustomResourceDefinition."""
    paths: set[str] = set()
    for version in definition["spec"]["versions"]:
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        paths |= set(_paths(schema, ""))
    return paths


def _paths(schema: Json, prefix: str) -> Iterator[str]:
    for name, inner in (schema.get("properties") or {}).items():
        path = f"{prefix}{name}"
        yield path
        yield from _paths(inner, f"{path}.")
    if isinstance(items := schema.get("items"), dict):
        yield from _paths(items, prefix)


def check_version(check: str, about: str, server: ServerSnapshot) -> Iterator[Finding]:
    """Check that Kubernetes is not older than the oldest release that is tested."""
    release, old = release_of(require(server.version))
    if old:
        message = f"Kubernetes {release} is older than {'.'.join(map(str, OLDEST))}"
        yield Finding(Severity.ERROR, about, message, "upgrade that cluster", check=check)


def check_clock(check: str, about: str, server: ServerSnapshot) -> Iterator[Finding]:
    """Check that the API server's clock shows the same time as this machine's."""
    skew = require(server.skew)
    if abs(skew) < _NOTICED:
        return
    seconds = skew.total_seconds()
    direction = "ahead of" if seconds > 0 else "behind"
    message = f"its clock is {abs(seconds):.0f} s {direction} this machine's"
    severity = Severity.ERROR if abs(skew) >= _HARMFUL else Severity.WARNING
    remedy = "set both clocks by NTP: time windows depend on them"
    yield Finding(severity, about, message, remedy, check=check)
