"""Hand-over pages: ConfigMaps that list the objects which the previous owner of a slot handled.

A deletion can only be handled by a replica that knows the object. The new owner of a slot has not
handled any of its objects yet, so no replica would know an object that is deleted around the
hand-over. Therefore the old owner writes the keys and UIDs of the objects that it handled before it
acknowledges the loss of the slot, and the new owner reads them before it starts:

    old owner   no work runs → on_shard_lost returned → page written → loss acknowledged
    new owner   slot granted → page read and removed → on_shard_gained → keys are taken

A page is a ConfigMap of the ring with one entry for each slot (several for a large slot). The new
owner of a slot removes the slot's entry before it starts, so an entry that exists was written by
the last replica that worked on the slot. A replica that crashed has written none.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, TypeVar

import msgspec

from kubeocean.errors import ApiError, Conflict, Forbidden, InvariantError, NotFound
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.names import Names

__all__ = ["HANDOVER", "Handled", "HandoverPages", "SlotHandover", "decode_pages", "encode_pages"]

HANDOVER: Final = "handover"  # value of the role label of a page
_PAGE_BYTES: Final = 400_000  # of the 1 MiB that an API server stores in a ConfigMap
_PART_KEYS: Final = 4_000  # in one entry; with UIDs and long names less than a page

_log = get_logger(__name__)
V = TypeVar("V")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Handled:
    """Objects of one slot that one controller handled: the UID of each key.

    `version` is a resourceVersion at which all these objects existed.
    """

    uids: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True)
class SlotHandover:
    """Content of the hand-over of a slot: the handled objects by controller, and the grant's
    epoch."""

    epoch: int
    controllers: Mapping[str, Handled]

    @property
    def empty(self) -> bool:
        return not any(handled.uids for handled in self.controllers.values())


class _Entry(msgspec.Struct):
    """Entry of a hand-over page: a part of the hand-over of one slot, as stored."""

    epoch: int
    controller: str
    version: str
    uids: dict[str, str]


def encode_pages(handovers: Mapping[int, SlotHandover]) -> list[dict[str, str]]:
    """Return the data of the ConfigMaps that hold these hand-overs, none larger than a page."""
    pages: list[dict[str, str]] = []
    room = 0
    for slot, handover in sorted(handovers.items()):
        for part, entry in enumerate(_entries(handover)):
            text = msgspec.json.encode(entry).decode()
            if not pages or len(text) > room:
                pages.append({})
                room = _PAGE_BYTES
            pages[-1][f"{slot}.{part}"] = text
            room -= len(text)
    return pages


def _entries(handover: SlotHandover) -> Iterator[_Entry]:
    for controller, handled in sorted(handover.controllers.items()):
        uids = iter(sorted(handled.uids.items()))
        while part := dict(islice(uids, _PART_KEYS)):
            yield _Entry(handover.epoch, controller, handled.version, part)


def decode_pages(pages: Iterable[Mapping[str, str]]) -> dict[int, SlotHandover]:
    """Return the hand-over of each slot in these pages; the newest if a slot has several.

    An entry that cannot be read is ignored.
    """
    entries: dict[int, list[_Entry]] = {}
    for page in pages:
        for name, text in page.items():
            slot = _slot_of_entry(name)
            try:
                entry = msgspec.json.decode(text, type=_Entry)
            except msgspec.MsgspecError as error:
                _log.warning("Ignored unreadable hand-over of shard", entry=name, error=str(error))
                continue
            if slot is not None:
                entries.setdefault(slot, []).append(entry)
    return {slot: _newest(parts) for slot, parts in entries.items()}


def _slot_of_entry(name: str) -> int | None:
    """Return the slot that the name of a page's entry contains, or None."""
    slot, _, part = name.partition(".")
    return int(slot) if slot.isdecimal() and slot.isascii() and part.isdecimal() else None


def _newest(entries: list[_Entry]) -> SlotHandover:
    epoch = max(entry.epoch for entry in entries)
    controllers: dict[str, Handled] = {}
    for entry in entries:
        if entry.epoch == epoch:
            before = controllers.get(entry.controller, Handled())
            uids = {**before.uids, **entry.uids}
            controllers[entry.controller] = Handled(uids, entry.version or before.version)
    return SlotHandover(epoch, controllers)


class HandoverPages:
    """The hand-over pages (ConfigMaps) of one ring in the API server.

    Calls that wait at the same time share one request, because many slots change owners together.
    """

    def __init__(self, client: Client, *, namespace: str, names: Names) -> None:
        self._client = client
        self._namespace = namespace
        self._names = names
        self._writes = _Batches[SlotHandover, None](self._write)
        self._reads = _Batches[None, SlotHandover | None](self._take)
        # Entries read but not delivered yet, by UID of the page and name: if the answer to a
        # removal was lost, the repeated removal no longer finds these entries.
        self._read: dict[tuple[str, str], str] = {}

    async def put(self, slot: int, handover: SlotHandover) -> None:
        """Store the list of handled objects of a slot for its next owner.

        :raises ApiError: the page could not be written.
        """
        await self._writes.submit(slot, handover)

    async def take(self, slot: int) -> SlotHandover | None:
        """Remove and return the hand-over of a slot's last owner; None if that owner stored none.

        :raises ApiError: the pages could not be read or changed.
        """
        return await self._reads.submit(slot, None)

    def forget(self, slots: Collection[int]) -> None:
        """Forget hand-overs that were read for slots which this replica lost before delivery."""
        for page, name in list(self._read):
            if _slot_of_entry(name) in slots:
                del self._read[page, name]

    async def clear(self) -> None:
        """Delete all hand-over pages of the ring.

        :raises ApiError: a page could not be deleted.
        """
        for page in await self._pages():
            await self._remove(page, page.data or {})

    async def _write(self, handovers: Mapping[int, SlotHandover]) -> Mapping[int, None]:
        names = self._names
        for data in encode_pages(handovers):
            meta = {
                "name": f"{names.ring}-handover-{secrets.token_hex(8)}",
                "namespace": self._namespace,
                "labels": names.labels(HANDOVER),
            }
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            await self._client.create(CONFIG_MAPS, body, namespace=self._namespace)
        return dict.fromkeys(handovers)

    async def _take(self, slots: Mapping[int, None]) -> Mapping[int, SlotHandover | None]:
        for page in await self._pages():
            data = page.data or {}
            wanted = {name: text for name, text in data.items() if _slot_of_entry(name) in slots}
            if wanted:
                self._read |= {(page.uid, name): text for name, text in wanted.items()}
                await self._remove(page, wanted)
        pages: dict[str, dict[str, str]] = {}
        for (uid, name), text in self._read.items():
            pages.setdefault(uid, {})[name] = text
        handovers = decode_pages(pages.values())
        self.forget(slots)
        return {slot: handovers.get(slot) for slot in slots}

    async def _pages(self) -> list[ConfigMap]:
        selected = self._names.selects(HANDOVER)
        listing = await self._client.list(CONFIG_MAPS, self._namespace, labels=selected)
        return listing.items

    async def _remove(self, page: ConfigMap, entries: Mapping[str, str]) -> None:
        """Remove entries of a page; a page without entries is deleted."""
        try:
            if entries.keys() == (page.data or {}).keys():
                await self._client.delete(
                    CONFIG_MAPS,
                    page.name,
                    page.namespace,
                    uid=page.uid,
                    resource_version=page.resource_version,
                )
                return
        except NotFound:
            return
        except Conflict:
            pass  # another replica removed its entries meanwhile
        except Forbidden as error:
            _log.warning("Was not allowed to delete ConfigMap of hand-overs", error=str(error))
        patch = MergePatch({"metadata": {"uid": page.uid}, "data": dict.fromkeys(entries)})
        try:
            await self._client.patch(CONFIG_MAPS, page.name, patch, page.namespace)
        except NotFound:
            return


class _Batches(Generic[V, R]):
    """Requests for single slots that are sent together: one batch is sent at a time, and slots that
    are submitted meanwhile form the next batch."""

    def __init__(self, send: Callable[[Mapping[int, V]], Awaitable[Mapping[int, R]]]) -> None:
        self._send = send
        self._waiting: dict[int, tuple[V, asyncio.Future[R]]] = {}
        self._sent: asyncio.Event | None = None  # set when the batch that is being sent has ended

    async def submit(self, slot: int, value: V) -> R:
        """Send `value` for a slot with the next batch, and return the result of the slot.

        :raises Exception: the error of the batch.
        """
        if slot in self._waiting:
            raise InvariantError("a slot was submitted twice", slot=slot)
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting[slot] = (value, result)
        try:
            await asyncio.sleep(0)  # slots that are submitted in this moment join the batch
            while not result.done():
                if self._sent is None:
                    await self._send_batch()
                else:
                    await self._sent.wait()
        finally:
            self._waiting.pop(slot, None)
            if not result.done():
                result.cancel()  # the caller was cancelled, and no other task reads the result
        return result.result()

    async def _send_batch(self) -> None:
        batch, self._waiting = self._waiting, {}
        self._sent = asyncio.Event()
        try:
            answers = await self._send({slot: value for slot, (value, _) in batch.items()})
        except ApiError as error:
            for _, result in batch.values():
                if not result.done():
                    result.set_exception(error)
        except BaseException:  # this sender was cancelled; slots with callers are sent again
            callers = {slot: each for slot, each in batch.items() if not each[1].done()}
            self._waiting = {**callers, **self._waiting}
            raise
        else:
            for slot, (_, result) in batch.items():
                if not result.done():
                    result.set_result(answers[slot])
        finally:
            self._sent.set()
            self._sent = None
