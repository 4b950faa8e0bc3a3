"""Versions of the programs that local clusters run, pinned in one place.

The Go modules that ship with Kubeocean pin the versions of Kubernetes, etcd and kwok for builds;
downloads use the same versions, read from the same files. The fingerprint of those files is in the
name of the cache, so that an old binary is never used with a changed pin.
"""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.errors import InvariantError, LocalError

__all__ = ["GO_MODULES", "Platform", "Versions", "fingerprint", "pinned", "this_platform"]

GO_MODULES: Final = Path(__file__).parent / "gobuild"
_PINNING: Final = ("go.mod", "go.sum", "*.go")
_ARCHITECTURES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SHOWN_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and a processor, with Go's names."""

    os: str
    arch: str

    def __str__(self) -> str:
        return f"{self.os}/{self.arch}"


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of Kubernetes, etcd and kwok, with a leading v; `go` is the oldest Go for builds."""

    kubernetes: str
    etcd: str
    kwok: str
    go: tuple[int, ...]


def this_platform() -> Platform:
    """Return the platform of this machine.

    :raises LocalError: no Kubernetes control plane is built for this platform.
    """
    system, machine = platform.system().lower(), platform.machine().lower()
    if system != "linux" or machine not in _ARCHITECTURES:
        raise LocalError(
            f"local clusters run on Linux on amd64 or arm64, this machine is {system}/{machine}"
        )
    return Platform("linux", _ARCHITECTURES[machine])


def pinned(modules: Path = GO_MODULES) -> Versions:
    """Return the versions that the go.mod files in `modules` require."""
    kubernetes = (modules / "kubernetes" / "go.mod").read_text()
    kwok = (modules / "kwok" / "go.mod").read_text()
    return Versions(
        kubernetes=_required(kubernetes, "k8s.io/kubernetes"),
        etcd=_required(kubernetes, "go.etcd.io/etcd/server/v3"),
        kwok=_required(kwok, "sigs.k8s.io/kwok"),
        go=max(_language(kubernetes), _language(kwok)),
    )


def fingerprint(modules: Path = GO_MODULES) -> str:
    """Return a short hash of all files that determine the built programs."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in _PINNING for file in modules.rglob(pattern)):
        digest.update(f"{file.relative_to(modules)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:_SHOWN_DIGITS]


def _required(go_mod: str, module: str) -> str:
    match = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise InvariantError("no go.mod of Kubeocean requires the module", module=module)
    return match[1]


def _language(go_mod: str) -> tuple[int, ...]:
    match = re.search(r"^go ([0-9.]+)$", go_mod, re.MULTILINE)
    if match is None:
        raise InvariantError("a go.mod of Kubeocean has no go line")
    return tuple(int(part) for part in match[1].split("."))
