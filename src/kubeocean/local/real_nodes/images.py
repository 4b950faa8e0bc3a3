"""Images: container images as tar files, built on this machine without a registry.

Each build of an image gives the same bytes: files are sorted, times are zero, owners are root. The
archive is an OCI layout that also contains the manifest of `docker save`, so that containerd,
Docker and podman can all import the archive.

Two images are enough to run pods: `busybox`, with a shell and a few hundred tools, and
`pause`, which holds a pod's namespaces.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kubeocean.errors import LocalError
from kubeocean.runtime.objects import Json

__all__ = [
    "BUSYBOX",
    "PAUSE",
    "File",
    "Image",
    "applets",
    "archive",
    "busybox_image",
    "find_busybox",
    "pause_image",
]

BUSYBOX: Final = "kubeocean.local/busybox:1"
PAUSE: Final = "kubeocean.local/pause:1"

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Sleeps; as the first process of a shared process namespace, reaps orphaned processes.
_SLEEP_AND_REAP: Final = "trap 'exit 0' TERM INT; while :; do sleep 2147483647 & wait; done"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_ELF_INTERPRETER: Final = 3  # PT_INTERP: program header of a dynamically linked program


@dataclass(frozen=True, slots=True)
class File:
    """A file in an image, or a symbolic link if `link` is given."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """A container image: files and command; paths are absolute, parent directories are added.

    A path that ends in a slash is a directory.
    """

    name: str
    files: Mapping[str, File]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = (_PATH,)
    user: str = ""
    directory: str = "/"
    architecture: str = field(default_factory=lambda: _architecture())

    def blobs(self) -> tuple[bytes, bytes, bytes]:
        """Return the image's layer, configuration and manifest."""
        layer = _tar(self.files)
        config = msgspec.json.encode(self._config(_digest(layer)))
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
        return layer, config, msgspec.json.encode(manifest)

    def _config(self, layer: str) -> Json:
        return {
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "Env": list(self.env),
                "Entrypoint": list(self.entrypoint),
                "Cmd": list(self.command),
                "User": self.user,
                "WorkingDir": self.directory,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer]},
            "created": "1970-01-01T00:00:00Z",
        }


def archive(*images: Image) -> bytes:
    """Return the images as one tar archive."""
    documents = {"oci-layout": msgspec.json.encode({"imageLayoutVersion": "1.0.0"})}
    index: list[Json] = []
    saved: list[Json] = []
    for image in images:
        layer, config, manifest = image.blobs()
        documents |= {_blob(data): data for data in (layer, config, manifest)}
        index.append(_index_entry(image, manifest))
        saved.append({"Config": _blob(config), "RepoTags": [image.name], "Layers": [_blob(layer)]})
    documents["index.json"] = msgspec.json.encode({"schemaVersion": 2, "manifests": index})
    documents["manifest.json"] = msgspec.json.encode(saved)
    return _tar({f"/{name}": File(data) for name, data in documents.items()})


def _index_entry(image: Image, manifest: bytes) -> Json:
    return {
        **_descriptor(_MANIFEST, manifest),
        "platform": {"architecture": image.architecture, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        },
    }


def find_busybox() -> Path:
    """Return the path of the machine's busybox program.

    :raises LocalError: the program does not exist, or needs libraries that an image does not have.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LocalError("there is no busybox on this machine; install busybox-static")
    if not _is_static(Path(busybox).read_bytes()):
        raise LocalError(f"{busybox} needs shared libraries; install busybox-static")
    return Path(busybox)


def applets(busybox: Path) -> list[str]:
    """Return the applets of a busybox binary, without `busybox`, which would link to itself."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    return sorted({name for name in listed.stdout.split() if name != "busybox"})


def busybox_image(busybox: Path, *, name: str = BUSYBOX) -> Image:
    """Return an image whose root file system has only busybox, under all its names."""
    tools = {f"/bin/{tool}": File(link="busybox") for tool in applets(busybox)}
    places = dict.fromkeys(("/dev/", "/etc/", "/proc/", "/root/", "/sys/"), File(mode=0o755))
    return Image(
        name,
        {
            **tools,
            **places,
            "/bin/busybox": File(busybox.read_bytes(), 0o755),
            "/etc/group": File(b"root:x:0:\nnobody:x:65534:\n"),
            "/etc/passwd": File(
                b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
            ),
            "/tmp/": File(mode=0o1777),  # noqa: S108 a place in the image, not on this machine
            "/usr/bin/env": File(link="/bin/busybox"),
        },
        command=("sh",),
    )


def pause_image(busybox: Path, *, name: str = PAUSE) -> Image:
    """Return the image of the sandbox container that every pod has."""
    return Image(
        name,
        {"/bin/busybox": File(busybox.read_bytes(), 0o755)},
        entrypoint=("/bin/busybox", "sh", "-c", _SLEEP_AND_REAP),
    )


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(data: bytes) -> str:
    return f"blobs/{_digest(data).replace(':', '/')}"


def _descriptor(media_type: str, data: bytes) -> Json:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}


def _tar(files: Mapping[str, File]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, file in sorted(_with_parents(files).items()):
            entry = tarfile.TarInfo(path.strip("/"))
            entry.mode = file.mode
            if path.endswith("/"):
                entry.type = tarfile.DIRTYPE
            elif file.link:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link, 0o777
            else:
                entry.size = len(file.data)
            tar.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()


def _with_parents(files: Mapping[str, File]) -> dict[str, File]:
    """Return the files with all parent directories; a given directory keeps its mode."""
    parents: dict[str, File] = {}
    for path in files:
        if not path.startswith("/"):
            raise LocalError(f"could not put {path!r} into an image: the path is not absolute")
        steps = path.strip("/").split("/")[:-1]
        for depth in range(1, len(steps) + 1):
            parents["/" + "/".join(steps[:depth]) + "/"] = File(mode=0o755)
    return {**parents, **files}


def _is_static(program: bytes) -> bool:
    """Whether a 64-bit little-endian ELF program is statically linked."""
    if program[:6] != b"\x7fELF\x02\x01":
        return False
    (offset,) = struct.unpack_from("<Q", program, 0x20)
    size, count = struct.unpack_from("<HH", program, 0x36)
    kinds = (struct.unpack_from("<I", program, offset + at * size)[0] for at in range(count))
    return _ELF_INTERPRETER not in kinds
