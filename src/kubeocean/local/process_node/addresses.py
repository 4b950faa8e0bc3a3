"""Loopback: an address of this machine for each pod of a process node.

All of 127.0.0.0/8 can be used without any set-up, so pods that share the machine can all listen on
their usual ports. The part that a node uses follows from the path of its directory, so that nodes
of different oceans use different parts.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

from kubeocean.errors import LocalError

__all__ = ["Addresses"]

_FIRST: Final = 2
_LAST: Final = 254


class Addresses:
    """Assigns loopback addresses: 127.x.y.1 to the node in `root`, the rest of the /24 to pods."""

    def __init__(self, root: Path) -> None:
        digest = zlib.crc32(str(root).encode())
        # Other programs use 127.0.0.0/16 and 127.1.0.0/16.
        self._network = f"127.{2 + digest % 253}.{(digest >> 8) % 256}"
        self.node = f"{self._network}.1"
        self._taken: dict[str, str] = {}

    def take(self, uid: str, wanted: str = "") -> str:
        """Return an address for the pod: its previous one, if that is free.

        :raises LocalError: all addresses are in use.
        """
        taken = set(self._taken.values())
        ours = (f"{self._network}.{number}" for number in range(_FIRST, _LAST + 1))
        free = [address for address in ours if address not in taken]
        if not free:
            raise LocalError(f"all addresses of {self._network}.0/24 are in use")
        self._taken[uid] = wanted if wanted in free else free[0]
        return self._taken[uid]

    def give_back(self, uid: str) -> None:
        """Free the address of a deleted pod."""
        self._taken.pop(uid, None)
