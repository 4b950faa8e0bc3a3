"""Node network: how real nodes are wired to this machine.

A node is at the far end of a veth pair, and has a /24 of its own: four addresses for the pair, the
upper half for pods. The machine routes between nodes, so pods reach each other and the machine
without address translation; nothing else is reachable from a node, and nothing of the machine's own
network is changed. With the node's namespace the kernel removes both ends of the pair, with their
addresses and routes.

The name of the near end, `kubeocean<slot>`, reserves a /24: the kernel allows each name once.
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

__all__ = ["BLOCKS", "Subnet", "cgroup_of", "choose_block", "claim", "configure", "released"]

# A /24 for each of 256 nodes. The first block that the machine has no route into is taken.
BLOCKS: Final = tuple(
    map(IPv4Network, ("10.215.0.0/16", "10.190.0.0/16", "172.27.0.0/16", "10.77.0.0/16"))
)
_SLOTS: Final = 256
_PREFIX: Final = "kubeocean"
_LINKS: Final = Path("/sys/class/net")
_LOCK: Final = Path("/run/kubeocean-nodes/lock")  # in a directory of root: no user can hold it
_LOCK_S: Final = 60.0
_NAMESPACE: Final = Path("/proc/self/ns/net")
_POLL_S: Final = 0.02
_GONE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Subnet:
    """The addresses of one node."""

    block: IPv4Network
    slot: int

    @property
    def link(self) -> str:
        """The near end of the pair."""
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
        """Address of the node for its pods."""
        return self._base + 129


def choose_block(routes: Iterable[Json]) -> IPv4Network:
    """Return the first block into which no route leads but the default one and our own.

    :raises LocalError: this machine is connected to all of them.
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
    except ValueError:  # "default", and kinds of routes that lead nowhere
        return None


async def claim(init: int, *, clock: Clock) -> Subnet:
    """Connect the node whose first process is `init` to the machine, and create its cgroup.

    Also tidies up after nodes that were killed together with their starter.
    """
    async with _alone(clock):
        _tidy_up()
        block = choose_block(_routes())
        for slot in range(_SLOTS):
            subnet = Subnet(block, slot)
            if not _exists(subnet) and _pair(subnet, init):
                cgroups.create(cgroup_of(subnet))
                return subnet
    raise LocalError(f"could not start a real node: there are {_SLOTS} of them already")


def cgroup_of(subnet: Subnet) -> str:
    """The name of its cgroup. Slots are unique in a network namespace, cgroups on a machine."""
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
    """Let one process of this machine at a time change its network.

    :raises LocalError: another process did so for a minute.
    """
    _LOCK.parent.mkdir(mode=0o700, exist_ok=True)
    deadline = clock.monotonic() + _LOCK_S
    with _LOCK.open("a+") as file:
        while not try_lock(file.fileno()):
            if clock.monotonic() >= deadline:
                raise LocalError(f"another process has held {_LOCK} for {_LOCK_S:g} s")
            await clock.sleep(_POLL_S)
        yield


def _pair(subnet: Subnet, init: int) -> bool:
    """Create the pair; False if another node was faster."""
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
    """Give both ends their addresses and routes; `inside` are further addresses of the node."""
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
    """Return when the pair is gone, which the kernel does a moment after the last process.

    :raises LocalError: something keeps the node's network alive.
    """
    deadline = clock.monotonic() + _GONE_S
    while _exists(subnet):
        if clock.monotonic() > deadline:
            raise LocalError(f"a real node ended, but its interface {subnet.link} did not go away")
        await clock.sleep(_POLL_S)
