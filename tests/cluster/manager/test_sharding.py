"""Two managers share the bindings: each looks after its own, and takes over those of a dead one."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from kubeocean.errors import ConfigError
from kubeocean.local.audit import AuditedRequest
from kubeocean.sharding.names import Names
from kubeocean.sharding.overseer import Overseer
from managers import manager
from managing import SYSTEM, Harbour
from syncers import SyncerProcess
from waiting import until

BINDINGS = 8


async def test_each_looks_after_its_own_bindings_and_one_killed_is_replaced(
    harbour: Harbour, tmp_path: Path
) -> None:
    home, since = harbour.home, harbour.home.audit.mark()
    users = {each: f"{harbour.name}-{each}" for each in ("one", "two")}
    overseer = Overseer(harbour.above, Names("kubeocean-manager"), namespace=SYSTEM)
    bindings = [harbour.neighbour() for _ in range(BINDINGS)]
    kubeconfig = harbour.worker.kubeconfig.read_bytes()
    replicas: dict[str, SyncerProcess] = {}

    async def shared() -> bool:
        for each in replicas.values():
            assert each.process.running, each.process.tail()
        try:
            table = (await overseer.state()).table
        except ConfigError:
            return False  # who is ready need not have been assigned anything yet
        owners = {entry.owner for entry in table.entries}
        return len(owners) == len(replicas) and not table.draining()

    def did(name: str) -> list[AuditedRequest]:
        asked = home.audit.requests(user=users[name], since=since)
        return [each for each in asked if each.verb in ("create", "patch") and each.code < 300]

    def looked_after(name: str) -> set[str]:
        told = [each for each in did(name) if each.resource == "clusterbindings"]
        return {each.name for each in told if each.subresource == "status"}

    async with AsyncExitStack() as stack:
        for name, user in users.items():
            replica = manager(
                name,
                "--sharding",
                kubeconfig=home.user(user, ["system:masters"]),
                directory=tmp_path,
                templates=harbour.templates,
            )
            replicas[name] = await stack.enter_async_context(replica)
        for each in replicas.values():
            await until(each.is_ready)
        await until(shared)
        for binding in bindings:
            await binding.bind(kubeconfig)
        for binding in bindings:
            await binding.becomes_ready()
        mine, theirs = looked_after("one"), looked_after("two")
        assert mine | theirs >= {binding.name for binding in bindings}
        assert not mine & theirs
        pages = [(await each.page("metrics", "/metrics"))[1] for each in replicas.values()]
        assert sum('clusterbindings_total{status="Ready"}' in page for page in pages) == 1

        await replicas.pop("one").process.kill()
        await until(shared)
        for binding in bindings:
            await binding.unbind()
        for binding in bindings:
            await until(binding.is_gone)
        assert await replicas["two"].process.stop() == 0
    made = Counter(
        (each.resource, each.name)
        for name in users
        for each in did(name)
        if each.verb == "create" and each.resource in ("deployments", "services")
    )
    assert set(made.values()) <= {1}, made.most_common(3)
