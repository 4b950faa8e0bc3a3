"""Download: official releases, verified with the checksums that their projects publish.

Kubernetes publishes a `.sha256` for each binary, etcd a `SHA256SUMS` for a release; for kwok
GitHub's digest of the file is used. Without a checksum, a file is not downloaded.

On a machine without network, downloads fail quickly: names that do not resolve fail at once, a host
that does not answer costs one short connect timeout, and a host that failed is not tried again.
"""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import aiohttp
import msgspec

from kubeocean.local.progress import Progress
from kubeocean.local.versions import Platform, Versions

__all__ = ["Mirrors", "Releases"]

_CONNECT_S: Final = 3.0
_SILENCE_S: Final = 20.0
_CHUNK: Final = 1 << 18
_ETCD: Final = "etcd"
_KWOK: Final = "kwok"


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Base URLs of the hosts from which releases are downloaded."""

    kubernetes: str = "https://dl.k8s.io"
    github: str = "https://github.com"
    github_api: str = "https://api.github.com"


class _Failed(Exception):
    """Raised for a failed download, with the reason."""


class _Asset(msgspec.Struct):
    name: str
    digest: str | None = None


class _Release(msgspec.Struct):
    assets: list[_Asset] = []


class Releases:
    """Downloads the official binaries of one set of versions."""

    def __init__(
        self,
        versions: Versions,
        platform: Platform,
        *,
        progress: Progress,
        mirrors: Mirrors | None = None,
    ) -> None:
        self._versions = versions
        self._platform = platform
        self._progress = progress
        self._mirrors = mirrors or Mirrors()
        self._dead: dict[str, str] = {}

    async def fetch(self, names: Iterable[str], into: Path) -> tuple[dict[str, Path], list[str]]:
        """Download releases; return the files by name, and the reason for each missing one.

        :raises OSError: the disk is full.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, connect=_CONNECT_S, sock_connect=_CONNECT_S, sock_read=_SILENCE_S
        )
        got: dict[str, Path] = {}
        failures: dict[str, None] = {}  # ordered, and a host's failure is reported once
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            await self._probe(session, names)
            for name in names:
                try:
                    got[name] = await self._fetch(session, name, into)
                except _Failed as failure:
                    failures[str(failure)] = None
        return got, list(failures)

    async def _probe(self, session: aiohttp.ClientSession, names: Iterable[str]) -> None:
        """Probe all hosts at once, so that unreachable ones cost one timeout."""
        bases = sorted({self._base(name) for name in names})
        with self._progress.task(f"looking for the official releases at {', '.join(bases)}"):
            async with asyncio.TaskGroup() as group:
                for base in bases:
                    group.create_task(self._probe_host(session, base))

    async def _probe_host(self, session: aiohttp.ClientSession, base: str) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S), session.head(base):
                pass
        except (TimeoutError, aiohttp.ClientError) as error:
            self._dead[base] = _why(error)

    def _base(self, name: str) -> str:
        return self._mirrors.github if name in (_ETCD, _KWOK) else self._mirrors.kubernetes

    async def _fetch(self, session: aiohttp.ClientSession, name: str, into: Path) -> Path:
        base = self._base(name)
        if base in self._dead:
            raise _Failed(f"{base}: {self._dead[base]}")
        if name == _ETCD:
            return await self._etcd(session, into)
        if name == _KWOK:
            return await self._kwok(session, into)
        return await self._kubernetes(session, name, into)

    async def _kubernetes(self, session: aiohttp.ClientSession, name: str, into: Path) -> Path:
        url = (
            f"{self._mirrors.kubernetes}/release/{self._versions.kubernetes}"
            f"/bin/{self._platform.os}/{self._platform.arch}/{name}"
        )
        expected = (await _text(session, f"{url}.sha256")).split()
        await self._save(session, url, into / name, expected[0] if expected else "")
        return into / name

    async def _etcd(self, session: aiohttp.ClientSession, into: Path) -> Path:
        version, platform = self._versions.etcd, self._platform
        stem = f"etcd-{version}-{platform.os}-{platform.arch}"
        release = f"{self._mirrors.github}/etcd-io/etcd/releases/download/{version}"
        sums = _checksums(await _text(session, f"{release}/SHA256SUMS"))
        archive = into / f"{stem}.tar.gz"
        url = f"{release}/{archive.name}"
        await self._save(session, url, archive, sums.get(archive.name, ""))
        try:
            await asyncio.to_thread(_extract, archive, f"{stem}/etcd", into / _ETCD)
        except (tarfile.TarError, KeyError) as error:
            raise _Failed(f"{url}: no etcd in the archive ({error})") from error
        finally:
            archive.unlink(missing_ok=True)
        return into / _ETCD

    async def _kwok(self, session: aiohttp.ClientSession, into: Path) -> Path:
        version = self._versions.kwok
        file = f"kwok-{self._platform.os}-{self._platform.arch}"
        about = f"{self._mirrors.github_api}/repos/kubernetes-sigs/kwok/releases/tags/{version}"
        try:
            release = msgspec.json.decode(await _text(session, about), type=_Release)
        except msgspec.DecodeError as error:
            raise _Failed(f"{about}: {error}") from error
        digests = {asset.name: asset.digest or "" for asset in release.assets}
        url = f"{self._mirrors.github}/kubernetes-sigs/kwok/releases/download/{version}/{file}"
        expected = digests.get(file, "").removeprefix("sha256:")
        await self._save(session, url, into / _KWOK, expected)
        return into / _KWOK

    async def _save(
        self, session: aiohttp.ClientSession, url: str, path: Path, expected: str
    ) -> None:
        if not expected:
            raise _Failed(f"{url}: the project publishes no checksum for this file")
        digest = hashlib.sha256()
        label = f"downloading {path.name}"
        with self._progress.task(label, unit="bytes") as task, path.open("wb") as file:
            try:
                async with session.get(url) as answer:
                    _check(url, answer.status)
                    task.expect(answer.content_length or 0)
                    async for chunk in answer.content.iter_chunked(_CHUNK):
                        digest.update(chunk)
                        file.write(chunk)
                        task.advance(len(chunk))
            except (TimeoutError, aiohttp.ClientError) as error:
                raise _Failed(f"{url}: {_why(error)}") from error
        if digest.hexdigest() != expected.lower():
            path.unlink()
            raise _Failed(f"{url}: the checksum does not match; the downloaded file was deleted")


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(url) as answer:
            _check(url, answer.status)
            return await answer.text()
    except (TimeoutError, aiohttp.ClientError) as error:
        raise _Failed(f"{url}: {_why(error)}") from error


def _check(url: str, status: int) -> None:
    if status != 200:
        raise _Failed(f"{url}: HTTP {status}")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(error) or type(error).__name__


def _checksums(text: str) -> Mapping[str, str]:
    """Parse the output of `sha256sum`; return the hashes by file name."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2}


def _extract(archive: Path, member: str, into: Path) -> None:
    """Extract one regular file of a tar archive to the path `into`."""
    with tarfile.open(archive) as tar:
        source: IO[bytes] | None = tar.extractfile(member)
        if source is None:
            raise KeyError(member)
        with source, into.open("wb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
