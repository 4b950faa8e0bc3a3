"""Cache: executables that were downloaded or built once, each complete or absent.

There is one directory per set of pinned versions. A file counts only if the manifest lists it with
its size: new files are written in a staging directory, synced, renamed into the cache, and added
to the manifest last. An interruption leaves a file that is not in the manifest, or a staging
directory; the next holder of the lock removes both.

One process at a time adds files; others wait and then use those files. Reading needs no lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kubeocean.errors import LocalError
from kubeocean.local.files import exclusive, user_directory
from kubeocean.local.progress import Progress, readable_bytes

__all__ = ["AssetCache", "ManifestEntry", "cache_home", "disk_full", "sha256_of"]

_GO_CACHE_BYTES: Final = 5_000_000_000  # modules and compiled packages of a first build
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ManifestEntry(msgspec.Struct, frozen=True):
    """Entry of the cache's manifest for one file; a link has the size and hash of its target."""

    size: int
    sha256: str
    origin: str


class _Manifest(msgspec.Struct):
    files: dict[str, ManifestEntry] = {}


def cache_home(environ: Mapping[str, str]) -> Path:
    """Return Kubeocean's directory in the user's cache, by the XDG rules.

    :raises ConfigError: the user has no home directory.
    """
    return user_directory(environ, "XDG_CACHE_HOME", ".cache") / "kubeocean"


@contextmanager
def disk_full(doing: str, directory: Path, *, needed: int) -> Iterator[None]:
    """Turn a full disk into a LocalError that names the path and the space that must be free.

    :raises LocalError: the disk, the quota or the file size limit is used up.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = directory
        if error.filename and not Path(error.filename).is_relative_to(directory.parent):
            where, needed = Path(error.filename).parent, _GO_CACHE_BYTES
        free = readable_bytes(shutil.disk_usage(_existing(where)).free)
        raise LocalError(
            f"could not {doing}: {(error.strerror or 'disk full').lower()} in {where}: "
            f"{free} are free, about {readable_bytes(needed)} are needed there"
        ) from error


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())


class AssetCache:
    """Cache of executables in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def lookup(self, names: Iterable[str]) -> tuple[dict[str, Path], list[str]]:
        """Return the cached files of `names`, and a problem for each that is corrupt."""
        manifest, complaints = self._read()
        files: dict[str, Path] = {}
        for name in names:
            path = self.directory / name
            entry = manifest.files.get(name)
            if entry is None:
                if path.exists():
                    complaints.append(f"{path} was not finished")
            elif complaint := _cheap_check(path, entry):
                complaints.append(complaint)
            else:
                files[name] = path
        return files, complaints

    def entries(self) -> dict[str, ManifestEntry]:
        return self._read()[0].files

    def verify(self) -> list[str]:
        """Compare every cached file with its recorded hash; return the problems."""
        manifest, complaints = self._read()
        hashes: dict[str, str] = {}
        for name, entry in sorted(manifest.files.items()):
            path = self.directory / name
            if complaint := _cheap_check(path, entry):
                complaints.append(complaint)
                continue
            real = os.path.realpath(path)
            hashes.setdefault(real, sha256_of(Path(real)))
            if hashes[real] != entry.sha256:
                complaints.append(f"{path} is damaged: its SHA-256 is not the recorded one")
        return complaints

    @asynccontextmanager
    async def locked(self, progress: Progress) -> AsyncIterator[None]:
        """Hold the lock for adding files; remove left-overs of interrupted runs."""
        lock = self.directory.with_name(f"{self.directory.name}.lock")
        waiting = "waiting for another build of the same binaries to end"
        async with exclusive(lock, waiting=waiting, progress=progress):
            for stale in self.directory.parent.glob(f"{self.directory.name}.tmp-*"):
                progress.note(f"removing {stale}, left by an interrupted build")
                shutil.rmtree(stale, ignore_errors=True)
            yield

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield a staging directory on the same disk, which is removed afterwards in every case."""
        directory = Path(
            tempfile.mkdtemp(prefix=f"{self.directory.name}.tmp-", dir=self.directory.parent)
        )
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def add(self, file: Path, names: Iterable[str], *, origin: str) -> None:
        """Move a finished file from the staging directory into the cache, under all `names`."""
        file.chmod(0o755)
        _sync(file)
        entry = ManifestEntry(size=file.stat().st_size, sha256=sha256_of(file), origin=origin)
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / file.name
        os.replace(file, target)
        manifest = self._read()[0]
        for name in names:
            path = self.directory / name
            if path != target:
                _link(path, target.name)
            manifest.files[name] = entry
        _sync(self.directory)
        self._write(manifest)

    def _read(self) -> tuple[_Manifest, list[str]]:
        path = self.directory / "manifest.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Manifest), []
        except FileNotFoundError:
            return _Manifest(), []
        except ValueError:  # not JSON, not text, or not a manifest
            return _Manifest(), [f"{path} is not readable"]

    def _write(self, manifest: _Manifest) -> None:
        path = self.directory / "manifest.json"
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        _sync(new)
        os.replace(new, path)
        _sync(self.directory)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cheap_check(path: Path, entry: ManifestEntry) -> str:
    try:
        size = path.stat().st_size
    except OSError as error:
        return f"{path} is missing ({error.strerror})"
    if size != entry.size:
        return f"{path} is half-written: {size} of {entry.size} bytes"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable"
    return ""


def _link(path: Path, target: str) -> None:
    """Create or replace the symbolic link `path` atomically."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    os.replace(new, path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
