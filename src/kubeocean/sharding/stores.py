"""Stores of versioned state, and the ring's table in such a store.

Every state has a version, which its next write must name: a writer that decided from an older
version gets a `Conflict`, and nothing is lost. `ConfigMapStore` keeps a state in an API server.

With the table the store keeps the *grants*: for each slot the epoch of the grant under which its
owner may write. That is the table's epoch of the slot; while the slot drains, the epoch of the
owner that hands it over. An admission policy compares a writer's epoch with the grants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from kubeocean.errors import AlreadyExists, ConfigError, Conflict, NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.objects import Json
from kubeocean.sharding.identity import (
    SLOTS_FIELD,
    ConfigurationRecord,
    RingIdentity,
    SettingDifference,
    differences,
    merged,
    refusal,
)
from kubeocean.sharding.table import SlotState, Table, empty_table
from kubeocean.sharding.table_encoding import decode_table, encode_table

__all__ = [
    "ABSENT",
    "TABLE",
    "ConfigMapStore",
    "LoadedTable",
    "StateStore",
    "Stored",
    "TableStore",
    "Unreadable",
    "admission_view",
    "loaded_of",
    "state_of",
]

ABSENT: Final = ""  # the version of a state that does not exist
_FIELD: Final = "state"
_decode = msgspec.json.Decoder(dict).decode
V = TypeVar("V")


class Unreadable(ConfigError):
    """Raised for stored state that no replica of this ring wrote; a write that replaces the state
    must name `version`. `differences` are the settings in which its writer differs from this
    replica."""

    def __init__(
        self, message: str, *, version: str, differences: Sequence[SettingDifference] = ()
    ) -> None:
        super().__init__(message)
        self.version = version
        self.differences = tuple(differences)


@dataclass(frozen=True, slots=True)
class Stored:
    """State as it was read, and the version that the next write has to name."""

    state: Json
    version: str


class StateStore(Protocol):
    """Store of versioned states, each under a key."""

    async def save(self, key: str, state: Json, expected_version: str) -> str:
        """Write a state if the stored version is `expected_version` (`ABSENT`: if there is none),
        and return the new version.

        :raises Conflict: the stored version is another one.
        """

    async def load(self, key: str) -> Stored | None:
        """Return the stored state and its version; None if there is no state.

        :raises Unreadable: the state was not written by a replica.
        """

    async def delete(self, key: str, expected_version: str) -> None:
        """Remove a state if the stored version is `expected_version`.

        :raises Conflict: the stored version is another one.
        """

    async def list(self, prefix: str = "") -> list[str]:
        """Return the keys of states that begin with a prefix, in order."""


class ConfigMapStore:
    """`StateStore` that keeps each state in one ConfigMap.

    A version is the ConfigMap's resourceVersion. `labels` are set on each ConfigMap, and `list`
    finds only ConfigMaps with these labels. `beside` returns further data of a state's ConfigMap,
    for readers such as an admission policy; the data is written in the same request.
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
            config = await self._client.get(CONFIG_MAPS, key, self._namespace)
        except NotFound:
            return None
        return state_of(config)

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
        return sorted(config.name for config in listing.items if config.name.startswith(prefix))


def state_of(config: ConfigMap) -> Stored:
    """Return the state that a ConfigMap holds.

    :raises Unreadable: the ConfigMap was not written by a `ConfigMapStore`.
    """
    try:
        state: Json = _decode((config.data or {}).get(_FIELD, ""))
    except msgspec.DecodeError as error:
        message = f"could not read the state in ConfigMap {config.key}: {error}"
        raise Unreadable(message, version=config.resource_version) from None
    return Stored(state, config.resource_version)


def _nothing(state: Json) -> Mapping[str, str]:
    return {}


def _conflict(error: AlreadyExists | NotFound) -> Conflict:
    return Conflict(str(error), status=error.status, reason=error.reason)


_TABLE: Final = "table"
_GRANTS: Final = "grants"
_PRINCIPALS: Final = "principals"
_TIMESTAMP: Final = "timestamp"
_IDENTITY: Final = "identity"
_EARLIER: Final = "earlier"
TABLE: Final = "table"  # value of the role label


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """Table as it was read, with the version that the next write has to name.

    `identity` are the settings of the replicas that wrote the table, `earlier` the ring's earlier
    settings, and `written` is the time of the write, for people.
    """

    table: Table
    version: str
    grants: tuple[int, ...]
    identity: RingIdentity = field(default_factory=dict)
    earlier: tuple[ConfigurationRecord, ...] = ()
    written: str = ""


class TableStore:
    """Reads and writes the table of one ring, for a replica with the settings `identity`."""

    def __init__(
        self,
        store: StateStore,
        *,
        key: str,
        ring: str,
        slots: int,
        identity: RingIdentity | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._key = key
        self._ring = ring
        self._slots = slots
        self._identity: RingIdentity = {} if identity is None else identity
        self._clock = clock or RealClock()

    def records(self, loaded: LoadedTable) -> bool:
        """Return whether a stored table has all settings of this replica's identity."""
        return self._identity.keys() <= loaded.identity.keys()

    async def load(self) -> LoadedTable:
        """Return the stored table; an empty table if there is none yet.

        :raises Unreadable: the state is not a table of this ring, or was written by replicas with
            other settings.
        """
        stored = await self._store.load(self._key)
        if stored is None:
            return LoadedTable(empty_table(self._ring, self._slots), ABSENT, (0,) * self._slots)
        return self.read(stored)

    def read(self, stored: Stored) -> LoadedTable:
        """Return the table of slot owners in a stored state.

        :raises Unreadable: the state is not a table of this ring, or was written by replicas with
            other settings.
        """
        try:
            loaded = loaded_of(stored, ring=self._ring)
        except ConfigError as error:
            raise Unreadable(str(error), version=stored.version) from error
        # The table itself shows the number of slots, also if its writer stored no identity.
        theirs = {**loaded.identity, SLOTS_FIELD: str(loaded.table.slots)}
        ours = {SLOTS_FIELD: str(self._slots), **self._identity}
        if differing := differences(ours, theirs):
            raise Unreadable(
                str(refusal(self._ring, differing, ())),
                version=stored.version,
                differences=differing,
            )
        return loaded

    async def save(
        self, table: Table, upon: LoadedTable, *, principals: Mapping[str, str] | None = None
    ) -> LoadedTable:
        """Write the table if the stored version is still that of `upon`.

        :raises Conflict: the stored version is another one.
        """
        grants = _grants(table, upon)
        identity = merged(self._identity, upon.identity)
        written = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {
            _TIMESTAMP: written,
            _IDENTITY: identity,
            _EARLIER: [
                {"identity": dict(each.identity), "until": each.until} for each in upon.earlier
            ],
            _TABLE: msgspec.json.decode(encode_table(table)),
            _GRANTS: list(grants),
            _PRINCIPALS: {
                member: principal
                for member, principal in sorted((principals or {}).items())
                if member in table.owners
            },
        }
        version = await self._store.save(self._key, state, upon.version)
        return LoadedTable(table, version, grants, identity, upon.earlier, written)


def loaded_of(stored: Stored, *, ring: str) -> LoadedTable:
    """Return the table in a stored state.

    :raises ConfigError: the state contains no table, or the table of another ring.
    """
    table = decode_table(msgspec.json.encode(stored.state.get(_TABLE)), ring=ring)
    try:
        grants = msgspec.convert(stored.state.get(_GRANTS), tuple[int, ...])
    except msgspec.ValidationError:
        grants = ()
    if len(grants) != table.slots:  # a table written by hand: no grant is known to be older
        grants = tuple(entry.epoch for entry in table.entries)
    identity = _convert(stored.state.get(_IDENTITY), dict[str, str], {})
    earlier = _convert(stored.state.get(_EARLIER), tuple[ConfigurationRecord, ...], ())
    written = _convert(stored.state.get(_TIMESTAMP), str, "")
    return LoadedTable(table, stored.version, grants, identity, earlier, written)


def _convert(value: object, kind: type[V], otherwise: V) -> V:
    """Return a part of a stored state; `otherwise` if the part is missing or has another type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return otherwise


def admission_view(state: Json) -> dict[str, str]:
    """Return the ConfigMap data that the admission policy reads: each slot's grant and its
    writer."""
    table = decode_table(msgspec.json.encode(state[_TABLE]))
    known: Mapping[str, str] = state.get(_PRINCIPALS) or {}
    # The first, "", stands for slots without an owner and owners without a principal.
    principals = ["", *sorted(set(known.values()))]
    number = {member: principals.index(principal) for member, principal in known.items()}
    return {
        "epoch": str(table.epoch),
        "grants": ",".join(str(grant) for grant in state[_GRANTS]),
        "owners": ",".join(str(number.get(entry.owner, 0)) for entry in table.entries),
        "principals": "\n".join(principals),
    }


def _grants(table: Table, upon: LoadedTable) -> tuple[int, ...]:
    before = upon.table.entries
    return tuple(
        upon.grants[slot]
        if entry.state is SlotState.DRAINING and before[slot].owner == entry.owner
        else entry.epoch
        for slot, entry in enumerate(table.entries)
    )
