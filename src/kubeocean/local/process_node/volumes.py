"""Pod volumes: ConfigMaps and Secrets of a pod as directories, updated when the objects change.

A reader of a directory sees one version of the object or the next, never a mixture: files are links
into a directory that is replaced atomically, as by a kubelet.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from kubeocean.local.files import private_directory
from kubeocean.runtime.client import Client
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json, Resource, Untyped

__all__ = ["Volume", "fill", "volumes"]

_CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", True, Untyped)
_DATA: Final = "..data"
_OWN: Final = "projected"  # the token, which a pod of a process node has in its kubeconfig instead


class Volume:
    """The directory of one ConfigMap or Secret that a pod mounts."""

    def __init__(
        self, directory: Path, source: Json, informer: Informer[Untyped], *, secret: bool = False
    ) -> None:
        self.directory = private_directory(directory)
        self._secret = secret
        self._chosen = {item["key"]: item["path"] for item in source.get("items") or ()}
        self._informer = informer
        self.optional = bool(source.get("optional"))
        self.exists = False
        informer.on_change(self._changed)

    async def run(self) -> None:
        """Watch the ConfigMap or Secret and update the directory, until cancelled."""
        await self._informer.run()

    async def ready(self) -> bool:
        """Wait until the object was read; return whether it exists or is optional."""
        await self._informer.synced()
        return self.exists or self.optional

    def _changed(self, old: Untyped | None, new: Untyped | None) -> None:
        if new is None:
            return  # the files stay, as with a kubelet
        self.exists = True
        content = _content(new, secret=self._secret)
        if self._chosen:
            content = {path: content[key] for key, path in self._chosen.items() if key in content}
        fill(self.directory, content)


def volumes(pod: Json, client: Client, root: Path) -> dict[str, Volume | Path]:
    """Return the volumes of a pod by name; an emptyDir is only a path.

    :raises LookupError: a process node does not support this type of volume.
    """
    namespace = pod["metadata"]["namespace"]
    volumes: dict[str, Volume | Path] = {}
    for volume in pod["spec"].get("volumes") or ():
        name, directory = volume["name"], root / volume["name"]
        if "emptyDir" in volume:
            volumes[name] = private_directory(directory)
        elif (source := volume.get("configMap")) is not None:
            informer = _informer(client, _CONFIG_MAPS, namespace, source["name"])
            volumes[name] = Volume(directory, source, informer)
        elif (source := volume.get("secret")) is not None:
            informer = _informer(client, SECRETS, namespace, source["secretName"])
            volumes[name] = Volume(directory, source, informer, secret=True)
        elif _OWN not in volume:
            kind = next((key for key in volume if key != "name"), "nothing")
            raise LookupError(f"volume {name}: the type {kind} is not supported by process nodes")
    return volumes


def fill(directory: Path, content: Mapping[str, bytes]) -> None:
    """Replace the files of `directory` by `content`, atomically."""
    digest = sha256(repr(sorted(content.items())).encode()).hexdigest()[:16]
    data = directory / _DATA
    before = os.readlink(data) if data.is_symlink() else ""
    if before == f"..{digest}":
        return
    fresh = directory / f"..{digest}"
    shutil.rmtree(fresh, ignore_errors=True)
    private_directory(fresh)
    for name, text in content.items():
        private_directory((fresh / name).parent)
        (fresh / name).write_bytes(text)
    link = directory / f"{_DATA}.new"
    link.unlink(missing_ok=True)
    link.symlink_to(fresh.name)
    os.replace(link, data)
    tops = {name.partition("/")[0] for name in content}
    for name in tops:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"{_DATA}/{name}")
    for entry in list(directory.iterdir()):
        if entry.is_symlink() and entry.name != _DATA and entry.name not in tops:
            entry.unlink()
    if before:
        shutil.rmtree(directory / before, ignore_errors=True)


def _informer(
    client: Client, resource: Resource[Untyped], namespace: str, name: str
) -> Informer[Untyped]:
    """Return an informer of one object: a node may not list others."""
    fields = f"metadata.name={name}"
    return Informer(client, resource, namespace=namespace, fields=fields, keep_raw=True)


def _content(there: Untyped, *, secret: bool) -> dict[str, bytes]:
    whole = there.content()
    data: dict[str, str] = whole.get("data") or {}
    coded: dict[str, str] = data if secret else whole.get("binaryData") or {}
    texts = {} if secret else {name: text.encode() for name, text in data.items()}
    return texts | {name: base64.b64decode(text) for name, text in coded.items()}
