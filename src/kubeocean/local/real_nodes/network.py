"""Node network: how real nodes are connected to this machine.

A veth pair connects a node to the machine. Each node has a /24: four addresses for the pair, the
upper half for pods. The machine routes between nodes, so pods reach each other and the machine
without address translation; nothing else is reachable from a node, and the machine's own network
is not changed. With the node's namespace the kernel removes both ends of the pair, with their
addresses and routes.

The name of the machine's end, `kubeocean<slot>`, reserves a /24: the kernel allows each name once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeocean.errors import LocalError
from kubeocean.local.files import try_lock
from kubeocean.local.process import run
from kubeocean.local.real_nodes import cgroups
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.objects import Json

__all__ = [
    "BLOCKS",
    "LOCK",
    "Subnet",
    "cgroup_of",
    "choose_block",
    "claim",
    "configure",
    "released",
]

# A /24 for each of 256 nodes. The first block that the machine has no route into is taken.
BLOCKS: Final = tuple(
    map(IPv4Network, ("10.215.0.0/16", "10.190.0.0/16", "172.27.0.0/16", "10.77.0.0/16"))
)
_SLOTS: Final = 256
_PREFIX: Final = "kubeocean"
_LINKS: Final = Path("/sys/class/net")
LOCK: Final = Path("/run/kubeocean-nodes/lock")  # root's: other users cannot hold it
_LOCK_S: Final = 60.0
_NAMESPACE: Final = Path("/proc/self/ns/net")
_POLL_S: Final = 0.02
_GONE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Subnet:
    """The addresses of one real node and its pods."""

    block: IPv4Network
    slot: int

    @property
    def link(self) -> str:
        """Name of the network interface that is the machine's end of the node's veth pair."""
        return f"{_PREFIX}{self.slot}"

    @property
    def _base(self) -> IPv4Address:
        return self.block.network_address + 256 * self.slot

    @property
    def machine(self) -> IPv4Address:
        return self._base + 1

    @property
    def node(self) -> IPv4Address:
        return self._base + 2

    @property
    def pods(self) -> IPv4Network:
        return IPv4Network((self._base + 128, 25))

    @property
    def gateway(self) -> IPv4Address:
        """Address of the node in its pods' network."""
        return self._base + 129


def choose_block(routes: Iterable[Json]) -> IPv4Network:
    """Return the first address block without routes, except the default one and those of nodes.

    :raises LocalError: this machine has routes into all blocks.
    """
    taken = [_destination(route) for route in routes]
    for block in BLOCKS:
        if not any(network is not None and network.overlaps(block) for network in taken):
            return block
    tried = ", ".join(map(str, BLOCKS))
    raise LocalError(f"could not find a network for real nodes: the machine has routes to {tried}")


def _destination(route: Json) -> IPv4Network | None:
    if str(route.get("dev", "")).startswith(_PREFIX):
        return None
    try:
        return IPv4Network(str(route.get("dst", "")), strict=False)
    except ValueError:  # "default", and types of routes without a destination
        return None


async def claim(init: int, *, clock: Clock) -> Subnet:
    """Connect the node whose first process is `init` to the machine; return its addresses.

    Also creates the node's cgroup, and removes cgroups of nodes that were killed together with
    their starter.
    """
    async with _alone(clock):
        _tidy_up()
        block = choose_block(_routes())
        for slot in range(_SLOTS):
            subnet = Subnet(block, slot)
            if not _exists(subnet) and _pair(subnet, init):
                cgroups.create(cgroup_of(subnet))
                return subnet
    raise LocalError(f"could not start a real node: {_SLOTS} real nodes are running, the maximum")


def cgroup_of(subnet: Subnet) -> str:
    """Return the name of the cgroup of a node with these addresses.

    Slots are unique in a network namespace, names of cgroups on a machine.
    """
    return f"{_our_namespace()}-{subnet.slot}"


def _our_namespace() -> int:
    return _NAMESPACE.stat().st_ino


def _tidy_up() -> None:
    for name in cgroups.leftovers():
        namespace, _, slot = name.partition("-")
        if namespace == str(_our_namespace()) and not (_LINKS / f"{_PREFIX}{slot}").exists():
            cgroups.remove_dead(name)


def _routes() -> list[Json]:
    shown = run("ip", "-json", "-4", "route", "show", "table", "all")
    return msgspec.json.decode(shown, type=list[dict[str, Any]])


def _exists(subnet: Subnet) -> bool:
    return (_LINKS / subnet.link).exists()


@asynccontextmanager
async def _alone(clock: Clock) -> AsyncIterator[None]:
    """Hold the lock by which one process at a time changes the machine's network.

    :raises LocalError: another process held the lock for a minute.
    """
    LOCK.parent.mkdir(mode=0o700, exist_ok=True)
    LOCK.parent.chmod(0o700)
    deadline = clock.monotonic() + _LOCK_S
    with LOCK.open("a+") as file:
        while not try_lock(file.fileno()):
            if clock.monotonic() >= deadline:
                raise LocalError(
                    f"could not lock {LOCK}: another process has held the lock for {_LOCK_S:g} s"
                )
            await clock.sleep(_POLL_S)
        yield


def _pair(subnet: Subnet, init: int) -> bool:
    """Create the veth pair of a node; False if another node has taken its name."""
    try:
        run(
            *("ip", "link", "add", "name", subnet.link, "type", "veth"),
            *("peer", "name", "eth0", "netns", str(init)),
        )
    except LocalError as error:
        if "File exists" in str(error):
            return False
        raise
    return True


def configure(subnet: Subnet, init: int, *, inside: Iterable[str]) -> None:
    """Set addresses and routes of both ends of a veth pair; `inside`: more node addresses."""
    far = [
        "link set lo up",
        f"address add {subnet.node}/30 dev eth0",
        "link set eth0 up",
        *(f"address add {address}/32 dev lo" for address in inside),
        *(f"route add {block} via {subnet.machine}" for block in BLOCKS),
    ]
    near = [
        f"address add {subnet.machine}/30 dev {subnet.link}",
        f"link set {subnet.link} up",
        f"route add {subnet.pods} via {subnet.node} dev {subnet.link}",
    ]
    enter = ("nsenter", f"--target={init}", "--net")
    run(*enter, "ip", "-batch", "-", stdin="\n".join(far).encode())
    run("ip", "-batch", "-", stdin="\n".join(near).encode())
    # Only packets from nodes are forwarded: the machine does not become a router.
    Path(f"/proc/sys/net/ipv4/conf/{subnet.link}/forwarding").write_text("1")


async def released(subnet: Subnet, *, clock: Clock) -> None:
    """Wait until the kernel has removed a node's veth pair, a moment after its last process.

    :raises LocalError: the pair still exists after the time-out.
    """
    deadline = clock.monotonic() + _GONE_S
    while _exists(subnet):
        if clock.monotonic() > deadline:
            raise LocalError(
                f"a real node ended, but the kernel did not remove its interface {subnet.link}"
            )
        await clock.sleep(_POLL_S)
