"""Download: official releases, verified with pinned checksums or with those that projects publish.

The file `gobuild/SHA256SUMS` pins checksums beside the versions (`scripts/checksums` writes it); a
file with a pinned checksum is compared with that one only. For other files Kubernetes publishes a
`.sha256` for each binary, etcd a `SHA256SUMS` for a release; for kwok GitHub's digest of the file
is used. These come from the server of the file itself, so a note says that they are not pinned.
Without a checksum, a file is not downloaded.

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

from kubeocean.errors import LocalError
from kubeocean.local.progress import Progress
from kubeocean.local.versions import GO_MODULES, Platform, Versions
from kubeocean.runtime.retries import explain

__all__ = ["CHECKSUMS", "Mirrors", "Releases", "pinned_checksums"]

CHECKSUMS: Final = GO_MODULES / "SHA256SUMS"

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
        checksums: Mapping[str, str] | None = None,
    ) -> None:
        self._versions = versions
        self._platform = platform
        self._progress = progress
        self._mirrors = mirrors or Mirrors()
        self._checksums = pinned_checksums() if checksums is None else checksums
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

    async def published(self, names: Iterable[str]) -> dict[str, str]:
        """Return the checksums that projects publish, by the names that `SHA256SUMS` has for them.

        :raises LocalError: a checksum is not published, or could not be read.
        """
        sums: dict[str, str] = {}
        async with aiohttp.ClientSession(trust_env=True) as session:
            for name in names:
                try:
                    expected = await self._published(session, name)
                except _Failed as failure:
                    raise LocalError(f"no checksum of {name}: {failure}") from failure
                if not expected:
                    raise LocalError(f"no checksum of {name}: {self._url(name)} has none")
                sums[self._pin(name)] = expected
        return sums

    async def _fetch(self, session: aiohttp.ClientSession, name: str, into: Path) -> Path:
        base = self._base(name)
        if base in self._dead:
            raise _Failed(f"{base}: {self._dead[base]}")
        expected = self._checksums.get(self._pin(name), "")
        if not expected:
            expected = await self._published(session, name)
            self._progress.note(
                f"the checksum of {name} is not pinned: it comes from the server of the file"
            )
        url = self._url(name)
        if name != _ETCD:
            await self._save(session, url, into / name, expected)
            return into / name
        archive = into / url.rpartition("/")[2]
        await self._save(session, url, archive, expected)
        member = f"{archive.name.removesuffix('.tar.gz')}/{_ETCD}"
        try:
            await asyncio.to_thread(_extract, archive, member, into / _ETCD)
        except (tarfile.TarError, KeyError) as error:
            raise _Failed(f"{url}: no etcd in the archive ({error})") from error
        finally:
            archive.unlink(missing_ok=True)
        return into / _ETCD

    def _version(self, name: str) -> str:
        return {_ETCD: self._versions.etcd, _KWOK: self._versions.kwok}.get(
            name, self._versions.kubernetes
        )

    def _pin(self, name: str) -> str:
        """Return the name of a release in `SHA256SUMS`, such as `kubelet-v1.34.4-linux-amd64`."""
        return f"{name}-{self._version(name)}-{self._platform.os}-{self._platform.arch}"

    def _url(self, name: str) -> str:
        version, platform, mirrors = self._version(name), self._platform, self._mirrors
        if name == _ETCD:
            file = f"etcd-{version}-{platform.os}-{platform.arch}.tar.gz"
            return f"{mirrors.github}/etcd-io/etcd/releases/download/{version}/{file}"
        if name == _KWOK:
            file = f"kwok-{platform.os}-{platform.arch}"
            return f"{mirrors.github}/kubernetes-sigs/kwok/releases/download/{version}/{file}"
        return f"{mirrors.kubernetes}/release/{version}/bin/{platform.os}/{platform.arch}/{name}"

    async def _published(self, session: aiohttp.ClientSession, name: str) -> str:
        """Return the checksum that the project publishes, or "" if its list has no such file."""
        directory, _, file = self._url(name).rpartition("/")
        if name == _ETCD:
            return _checksums(await _text(session, f"{directory}/SHA256SUMS")).get(file, "")
        if name != _KWOK:
            words = (await _text(session, f"{directory}/{file}.sha256")).split()
            return words[0] if words else ""
        about = (
            f"{self._mirrors.github_api}/repos/kubernetes-sigs/kwok/releases"
            f"/tags/{self._versions.kwok}"
        )
        try:
            release = msgspec.json.decode(await _text(session, about), type=_Release)
        except msgspec.DecodeError as error:
            raise _Failed(f"{about}: {error}") from error
        digests = {asset.name: asset.digest or "" for asset in release.assets}
        return digests.get(file, "").removeprefix("sha256:")

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


def pinned_checksums(file: Path = CHECKSUMS) -> dict[str, str]:
    """Return the checksums that `SHA256SUMS` pins, by the names of releases."""
    return _checksums(file.read_text())


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
    return explain(error)


def _checksums(text: str) -> dict[str, str]:
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
