"""Assets: the programs (kube-apiserver, etcd, …) that clusters on this machine run.

Each program is looked for in this order:

1. the directories in KUBEOCEAN_ASSETS, then those in KUBEBUILDER_ASSETS;
2. for kubectl, PATH;
3. the user's cache;
4. the official release, downloaded with its checksum into the cache;
5. a build from the Go modules that ship with Kubeocean, into the cache.

A directory of the user gives either all wanted parts of the control plane or none of them: a
kube-apiserver must not run with a newer controller manager. If a program cannot be obtained, one
error names every attempt, its failure, and a remedy.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeocean.errors import InvariantError, LocalError
from kubeocean.local.build import Builder, Unit, find_go, units_for
from kubeocean.local.cache import AssetCache, cache_home, disk_full
from kubeocean.local.download import Mirrors, Releases
from kubeocean.local.progress import Progress, progress_on
from kubeocean.local.versions import GO_MODULES, fingerprint, pinned, this_platform

__all__ = ["CONTROL_PLANE", "DEFAULT", "EVERYTHING", "AssetFinder", "Assets", "ensure"]

CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
DEFAULT: Final = (*CONTROL_PLANE, "kwok", "kubectl")
EVERYTHING: Final = (*DEFAULT, "kubelet")
_VARIABLES: Final = ("KUBEOCEAN_ASSETS", "KUBEBUILDER_ASSETS")
_ONE_VERSION: Final = frozenset(CONTROL_PLANE) - {"etcd"}


class Assets:
    """Paths of the programs that local clusters run, by name."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    @classmethod
    def in_directory(cls, directory: Path) -> Assets:
        """Return all known programs that `directory` has."""
        return cls({name: directory / name for name in EVERYTHING if _runs(directory / name)})

    def path(self, name: str) -> Path:
        """Return the path of a program.

        :raises LocalError: this set of assets does not contain the program.
        """
        try:
            return self._paths[name]
        except KeyError:
            raise LocalError(f"{name} is not among the requested programs") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)


async def ensure(
    names: Iterable[str] = DEFAULT,
    *,
    progress: Progress | None = None,
    environ: Mapping[str, str] | None = None,
) -> Assets:
    """Return the programs `names`, after finding, downloading or building them.

    :raises LocalError: a program cannot be obtained, or the disk is full.
    """
    finder = AssetFinder(
        environ=os.environ if environ is None else environ,
        progress=progress_on() if progress is None else progress,
    )
    return await finder.ensure(names)


@dataclass(frozen=True, slots=True)
class _Attempt:
    source: str
    outcome: str


class AssetFinder:
    """Finds, downloads or builds the programs of local clusters.

    `modules` are the sources to build from, `mirrors` the download hosts.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        progress: Progress,
        modules: Path = GO_MODULES,
        mirrors: Mirrors | None = None,
    ) -> None:
        self._environ = environ
        self._progress = progress
        self._modules = modules
        self._mirrors = mirrors
        self._versions = pinned(modules)
        self._platform = this_platform()
        self._home = cache_home(environ)
        kind = f"{self._platform.os}-{self._platform.arch}"
        key = f"{self._versions.kubernetes}-{kind}-{fingerprint(modules)}"
        self.cache = AssetCache(self._home / "assets" / key)
        self._found: dict[str, Path] = {}
        self._wanted: list[str] = []
        self._attempts: list[_Attempt] = []

    async def ensure(self, names: Iterable[str]) -> Assets:
        """Return the programs `names`, after finding, downloading or building them."""
        self._wanted = list(dict.fromkeys(names))
        if unknown := set(self._wanted) - set(EVERYTHING):
            raise InvariantError("no programs of these names are known", names=sorted(unknown))
        self._look_in_directories()
        self._look_in_path()
        self._look_in_cache()
        if self._missing():
            await self._make()
        return Assets({name: self._found[name] for name in self._wanted})

    def verify(self) -> None:
        """Compare all cached files with their recorded hashes.

        :raises LocalError: a file is missing, or differs from its recorded hash.
        """
        if complaints := self.cache.verify():
            raise LocalError(
                f"{'; '.join(complaints)}; remove {self.cache.directory} to have the programs"
                " downloaded or built again"
            )

    def _missing(self) -> list[str]:
        return [name for name in self._wanted if name not in self._found]

    def _look_in_directories(self) -> None:
        named = [
            (variable, Path(directory).absolute())  # programs run in other directories
            for variable in _VARIABLES
            for directory in self._environ.get(variable, "").split(os.pathsep)
            if directory
        ]
        if not named:
            self._tried(" or ".join(_VARIABLES), "not set")
        for variable, directory in named:
            source = f"{variable}={directory}"
            if not directory.is_dir():
                self._progress.note(f"{source}: there is no such directory")
                self._tried(source, "no such directory")
                continue
            has = {name for name in self._missing() if _runs(directory / name)}
            partial = has & _ONE_VERSION
            if partial and partial != set(self._missing()) & _ONE_VERSION:
                self._tried(source, "has only a part of the control plane, which is not used")
                has -= _ONE_VERSION
            self._found.update({name: directory / name for name in has})
            if self._missing():
                self._tried(source, f"has no {', '.join(self._missing())}")

    def _look_in_path(self) -> None:
        kubectl = shutil.which("kubectl", path=self._environ.get("PATH", ""))
        if kubectl is not None and "kubectl" in self._missing():
            self._found["kubectl"] = Path(kubectl).absolute()

    def _look_in_cache(self) -> list[str]:
        cached, complaints = self.cache.lookup(self._missing())
        self._found.update(cached)
        return complaints

    async def _make(self) -> None:
        """Download or build missing programs into the cache."""
        doing = f"get {', '.join(self._missing())}"
        with disk_full(doing, self.cache.directory, needed=self._needed()):
            async with self.cache.locked(self._progress):
                complaints = self._look_in_cache()  # another build may just have ended
                for complaint in complaints:
                    self._progress.note(f"{complaint}: making it again")
                if not self._missing():
                    return
                self._tried(
                    f"the cache {self.cache.directory}",
                    "; ".join(complaints) or f"has no {', '.join(self._missing())}",
                )
                with self.cache.staging() as staging:
                    await self._download(staging)
                    await self._build(staging)

    def _needed(self) -> int:
        # The linker writes the file beside its parts, then copies the file: twice its size and
        # more.
        return sum(3 * unit.size for unit in units_for(frozenset(self._missing())))

    async def _download(self, staging: Path) -> None:
        releases = Releases(
            self._versions, self._platform, progress=self._progress, mirrors=self._mirrors
        )
        got, failures = await releases.fetch(self._missing(), staging)
        for name, file in got.items():
            await asyncio.to_thread(self.cache.add, file, [name], origin="download")
        self._look_in_cache()
        if failures:
            self._tried("the official release", "; ".join(failures))

    async def _build(self, staging: Path) -> None:
        units = units_for(frozenset(self._missing()))
        if not units:
            return
        if shutil.disk_usage(staging).free < self._needed():
            raise OSError(errno.ENOSPC, "too little space")
        source = "a build from source"
        try:
            builder = await self._builder()
            for unit in units:
                source = f"a build of {unit.name} from source"
                file = await builder.build(unit, staging)
                await self._keep(unit, file)
        except LocalError as error:
            self._tried(source, str(error))
            raise self._give_up() from error

    async def _builder(self) -> Builder:
        go = await find_go(
            self._versions.go,
            home=self._home / "go",
            environ=self._environ,
            progress=self._progress,
        )
        self._progress.note(f"building Kubernetes {self._versions.kubernetes} with {go}")
        return Builder(
            go,
            self._modules,
            versions=self._versions,
            platform=self._platform,
            environ=self._environ,
            progress=self._progress,
        )

    async def _keep(self, unit: Unit, file: Path) -> None:
        whole, _ = self.cache.lookup(unit.provides)  # downloaded ones stay as they are
        names = [name for name in unit.provides if name not in whole]
        await asyncio.to_thread(self.cache.add, file, names, origin="build")
        self._look_in_cache()

    def _tried(self, source: str, outcome: str) -> None:
        self._attempts.append(_Attempt(source, outcome))

    def _give_up(self) -> LocalError:
        tried = "\n".join(f"  - {attempt.source}: {attempt.outcome}" for attempt in self._attempts)
        go = ".".join(map(str, self._versions.go))
        return LocalError(
            f"could not get {', '.join(self._missing())} for {self._platform}. Tried:\n{tried}\n"
            f"What to do: connect this machine to a network and try again; or install Go {go} or "
            f"newer with access to Go modules; or set KUBEOCEAN_ASSETS to a directory that has "
            f"these programs of Kubernetes {self._versions.kubernetes}, etcd {self._versions.etcd} "
            f"and kwok {self._versions.kwok}."
        )


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
