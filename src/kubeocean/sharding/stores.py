"""Stores: state that only one writer at a time can change.

Every state has a version, which its next write must name: whoever decided upon an older one gets a
`Conflict`, and nothing is lost. `ConfigMapStore` keeps a state in an API server, `MemoryStore` for
as long as the process lives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from kubeocean.errors import AlreadyExists, ConfigError, Conflict, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch

__all__ = [
    "ABSENT",
    "ConfigMapStore",
    "MemoryStore",
    "StateStore",
    "Stored",
    "Unreadable",
    "state_of",
]

ABSENT: Final = ""  # the version of a state that does not exist
_FIELD: Final = "state"
_decode = msgspec.json.Decoder(dict).decode


class Unreadable(ConfigError):
    """What is stored was not written by us; `version` is what a write in its place has to name."""

    def __init__(self, message: str, *, version: str) -> None:
        super().__init__(message)
        self.version = version


@dataclass(frozen=True, slots=True)
class Stored:
    """A state, and the version that a write upon it has to name."""

    state: Json
    version: str


class StateStore(Protocol):
    """Where states live."""

    async def save(self, key: str, state: Json, expected_version: str) -> str:
        """Write the state if it is still at that version (`ABSENT`: if there is none); the new
        version.

        :raises Conflict: it is not.
        """

    async def load(self, key: str) -> Stored | None:
        """The state as it is now, None if there is none.

        :raises Unreadable: somebody else wrote it.
        """

    async def delete(self, key: str, expected_version: str) -> None:
        """Remove the state if it is still at that version.

        :raises Conflict: it is not.
        """

    async def list(self, prefix: str = "") -> list[str]:
        """The keys that begin so, in order."""


class MemoryStore:
    """A `StateStore` in this process."""

    def __init__(self) -> None:
        self._states: dict[str, Stored] = {}
        self._versions = itertools.count(1)

    async def save(self, key: str, state: Json, expected_version: str) -> str:
        self._check(key, expected_version)
        version = str(next(self._versions))
        self._states[key] = Stored(deepcopy(state), version)
        return version

    async def load(self, key: str) -> Stored | None:
        found = self._states.get(key)
        return None if found is None else Stored(deepcopy(found.state), found.version)

    async def delete(self, key: str, expected_version: str) -> None:
        self._check(key, expected_version)
        self._states.pop(key, None)

    async def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._states if key.startswith(prefix))

    def _check(self, key: str, expected_version: str) -> None:
        found = self._states.get(key)
        version = ABSENT if found is None else found.version
        if version != expected_version:
            raise Conflict(
                f"could not write state {key}: it is at version {version or 'none'}, "
                f"not {expected_version or 'none'}"
            )


class ConfigMapStore:
    """A `StateStore` of one ConfigMap a state.

    A version is the ConfigMap's resourceVersion. `labels` are put on each, and `list` finds only
    those that have them. `beside` says what else stands in a ConfigMap, for those who read it
    without us; it is written in the same request.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        labels: Mapping[str, str] | None = None,
        beside: Callable[[Json], Mapping[str, str]] | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._labels = dict(labels or {})
        self._beside = beside or _nothing

    async def save(self, key: str, state: Json, expected_version: str) -> str:
        data = {**self._beside(state), _FIELD: msgspec.json.encode(state).decode()}
        if expected_version == ABSENT:
            return (await self._create(key, data)).resource_version
        meta = {"resourceVersion": expected_version, "labels": self._labels}
        patch = MergePatch({"metadata": meta, "data": data})
        try:
            written = await self._client.patch(CONFIG_MAPS, key, patch, self._namespace)
        except NotFound as error:
            raise _conflict(error) from error
        return written.resource_version

    async def _create(self, key: str, data: Mapping[str, str]) -> ConfigMap:
        meta = {"name": key, "namespace": self._namespace, "labels": self._labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        try:
            return await self._client.create(CONFIG_MAPS, body, namespace=self._namespace)
        except AlreadyExists as error:
            raise _conflict(error) from error

    async def load(self, key: str) -> Stored | None:
        try:
            found = await self._client.get(CONFIG_MAPS, key, self._namespace)
        except NotFound:
            return None
        return state_of(found)

    async def delete(self, key: str, expected_version: str) -> None:
        try:
            # The version is the stronger precondition: it implies the UID.
            await self._client.delete(
                CONFIG_MAPS, key, self._namespace, uid=None, resource_version=expected_version
            )
        except NotFound as error:
            raise _conflict(error) from error

    async def list(self, prefix: str = "") -> list[str]:
        chosen = ",".join(f"{name}={value}" for name, value in sorted(self._labels.items()))
        listing = await self._client.list(CONFIG_MAPS, self._namespace, labels=chosen)
        return sorted(found.name for found in listing.items if found.name.startswith(prefix))


def state_of(found: ConfigMap) -> Stored:
    """The state that a ConfigMap holds.

    :raises Unreadable: somebody else wrote it.
    """
    try:
        state: Json = _decode((found.data or {}).get(_FIELD, ""))
    except msgspec.DecodeError as error:
        message = f"could not read the state in ConfigMap {found.key}: {error}"
        raise Unreadable(message, version=found.resource_version) from None
    return Stored(state, found.resource_version)


def _nothing(state: Json) -> Mapping[str, str]:
    return {}


def _conflict(error: AlreadyExists | NotFound) -> Conflict:
    return Conflict(str(error), status=error.status, reason=error.reason)
