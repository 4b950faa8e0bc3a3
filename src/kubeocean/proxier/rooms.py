"""Rooms: how many may be in at a time, of all, of those alike, and of those whom nobody knows.

Nobody can take all of the room: not who comes from one address and says nothing, nor who has no
certificate, nor who has one and many connections. Everybody else comes behind one name, that of an
API server; so neither can who opens sessions without end with pods of a namespace.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeocean.errors import Refusal

__all__ = ["Rooms", "Seats", "network_of"]

MOST: Final = 2_000  # connections in all
MOST_NAMESAKES: Final = 1_000  # of them, with certificates of one name
MOST_SEATS: Final = 500  # of those, in sessions with pods of one namespace
MOST_STRANGERS: Final = 500  # of them, without a certificate
MOST_STRANGERS_ALIKE: Final = 250  # of those, from one address
MOST_SHAKING: Final = 500  # on which TLS is not agreed upon yet
MOST_SHAKING_ALIKE: Final = 375  # of those, from one address: it may be a gateway's


class Rooms:
    """Who is in; a caller that was let in has to be let out."""

    def __init__(self) -> None:
        self._shaking = _Tally()
        self._strangers = _Tally()
        self._named = _Tally()

    def knock(self, address: str) -> bool:
        """Whether somebody from there may begin to agree on TLS; counts it."""
        return self._shaking.add(network_of(address), MOST_SHAKING, MOST_SHAKING_ALIKE)

    def knocked(self, address: str) -> None:
        """That came to an end."""
        self._shaking.remove(network_of(address))

    def enter(self, address: str, name: str) -> bool:
        """Whether somebody may stay, by the name in the certificate if there is one; counts it."""
        if self._strangers.total + self._named.total >= MOST:
            return False
        if name:
            return self._named.add(name, MOST, MOST_NAMESAKES)
        return self._strangers.add(network_of(address), MOST_STRANGERS, MOST_STRANGERS_ALIKE)

    def leave(self, address: str, name: str) -> None:
        if name:
            self._named.remove(name)
        else:
            self._strangers.remove(network_of(address))


class Seats:
    """Sessions that are open, by caller and by the namespace of the pod."""

    def __init__(self) -> None:
        self._taken = _Tally()

    @contextmanager
    def taken(self, caller: str, namespace: str) -> Iterator[None]:
        """One of them, as long as the block lasts.

        :raises Refusal: there is none left.
        """
        key = f"{namespace}/{caller}"  # no namespace has a slash in it
        if not self._taken.add(key, MOST, MOST_SEATS):
            raise Refusal(429, f"too many sessions with pods of namespace {namespace}")
        try:
            yield
        finally:
            self._taken.remove(key)


class _Tally:
    """Counts by key, no more than there are, and in all."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def add(self, key: str, most: int, most_alike: int) -> bool:
        alike = self._of.get(key, 0)
        if self.total >= most or alike >= most_alike:
            return False
        self.total += 1
        self._of[key] = alike + 1
        return True

    def remove(self, key: str) -> None:
        self.total -= 1
        left = self._of.pop(key) - 1
        if left:
            self._of[key] = left


def network_of(peer: str) -> str:
    """Where somebody comes from: an address, or the network of IPv6 that is one machine's."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return peer
    return f"{int(address) >> 64:x}"
