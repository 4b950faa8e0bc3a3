"""Build: the binaries made from the Go modules that ship with us.

The user's Go settings decide where modules come from and where Go caches; what could change the
result (workspace, flags, target platform, cgo) is fixed here. The exact content of every module is
pinned by go.sum.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError
from kubeocean.local.process import Process
from kubeocean.local.progress import Progress, Task
from kubeocean.local.toolchain import Go, run_logged
from kubeocean.local.versions import Platform, Versions

__all__ = ["UNITS", "Builder", "Unit", "units_for"]

_ERROR_LINES: Final = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of `go build`: the file `name`, which is also known as `provides`.

    `packages` is about how many are compiled the first time, `size` about what the file takes.
    """

    name: str
    module: str
    package: str
    provides: tuple[str, ...]
    packages: int
    size: int


UNITS: Final = (
    Unit(
        "controlplane",
        "kubernetes",
        "./controlplane",
        ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        packages=2630,
        size=135_000_000,
    ),
    Unit("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", ("kwok",), packages=660, size=70_000_000),
    Unit("kubelet", "kubernetes", "./kubelet", ("kubelet",), packages=100, size=90_000_000),
)


def units_for(names: frozenset[str]) -> list[Unit]:
    """What has to be built to have all of `names`."""
    return [unit for unit in UNITS if names & set(unit.provides)]


class Builder:
    """Builds units with one Go, for one platform."""

    def __init__(
        self,
        go: Go,
        modules: Path,
        *,
        versions: Versions,
        platform: Platform,
        environ: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self._go = go
        self._modules = modules
        self._versions = versions
        self._platform = platform
        self._environ = environ
        self._progress = progress

    async def build(self, unit: Unit, into: Path) -> Path:
        """Make one file; nothing else is left in `into`.

        :raises LocalError: the build failed; the text has the compiler's last lines.
        :raises OSError: the disk is full; `filename` is where.
        """
        target = into / unit.name
        scratch = into / "go"
        scratch.mkdir(exist_ok=True)
        argv = [str(self._go.program), "build", "-v", "-trimpath"]
        process = Process(
            f"go build of {unit.name}",
            [*argv, "-ldflags", self._ldflags(unit), "-o", target, unit.package],
            log=into / f"{unit.name}.log",
            env=self._environment(scratch),
            cwd=self._modules / unit.module,
        )
        label = f"building {unit.name}"
        with self._progress.task(label, total=unit.packages, unit="packages") as task:
            code = await run_logged(process, tick=_Follower(process.log, task, unit))
        if code != 0 or not target.exists():
            raise self._failure(unit, process, code)
        process.log.unlink()
        return target

    def _failure(self, unit: Unit, process: Process, code: int) -> Exception:
        said = [line for line in process.tail(200) if not _is_package(line)]
        for line in said:
            if "no space left on device" in line or "disk quota exceeded" in line:
                where = re.search(r"/[^\s:]+", line)
                return OSError(errno.ENOSPC, "No space left on device", where[0] if where else None)
        last = "; ".join(line.strip() for line in said[-_ERROR_LINES:]) or f"exit code {code}"
        return LocalError(last)

    def _ldflags(self, unit: Unit) -> str:
        if unit.module != "kubernetes":
            return "-s -w"
        # Without a version the servers call themselves v0.0.0 and clients refuse to believe them.
        version = self._versions.kubernetes
        major, minor = version.removeprefix("v").split(".")[:2]
        settings = {
            "k8s.io/component-base/version.gitVersion": version,
            "k8s.io/component-base/version.gitMajor": major,
            "k8s.io/component-base/version.gitMinor": minor,
            "k8s.io/client-go/pkg/version.gitVersion": version,
        }
        return "-s -w " + " ".join(f"-X {name}={value}" for name, value in settings.items())

    def _environment(self, scratch: Path) -> dict[str, str]:
        return {
            **self._environ,
            "CGO_ENABLED": "0",
            "GO111MODULE": "on",
            "GOARCH": self._platform.arch,
            "GOEXPERIMENT": "",
            "GOFLAGS": "-mod=readonly -buildvcs=false",
            "GOOS": self._platform.os,
            "GOROOT": "",  # that of another Go, if any
            "GOTMPDIR": str(scratch),  # large, and ours to remove when the build is interrupted
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }


class _Follower:
    """Turns the growing log of `go build -v` into progress."""

    def __init__(self, log: Path, task: Task, unit: Unit) -> None:
        self._log = log
        self._task = task
        self._unit = unit
        self._position = 0

    def __call__(self) -> None:
        with self._log.open("rb") as file:
            file.seek(self._position)
            whole, found, _ = file.read().rpartition(b"\n")
        if found:
            self._position += len(whole) + 1
            self._show(whole.decode("utf-8", "replace").splitlines())

    def _show(self, lines: list[str]) -> None:
        packages = [line for line in lines if _is_package(line)]
        if packages:
            self._task.advance(len(packages))
        last = lines[-1]
        if last.endswith(self._unit.package.lstrip("./")) and packages:
            self._task.say("linking")  # the main package comes last; the linker says nothing
        elif last.startswith("go: downloading "):
            self._task.say(last.removeprefix("go: "))
        elif packages:
            self._task.say(last)


def _is_package(line: str) -> bool:
    """`go build -v` prints one import path a line; its messages have blanks or colons."""
    return bool(line) and " " not in line and ":" not in line
