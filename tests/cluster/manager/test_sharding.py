"""Two managers share the bindings: each reconciles its own, and takes over those of a failed
one."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from kubeocean.errors import ConfigError
from kubeocean.local.audit import AuditedRequest
from kubeocean.sharding.admin import RingAdmin
from kubeocean.sharding.names import Names
from support.manager_env import SYSTEM, ManagerEnv
from support.manager_process import manager
from support.syncer_process import SyncerProcess
from support.wait import until

BINDINGS = 8


async def test_replicas_share_the_bindings_and_a_killed_replica_is_replaced(
    env: ManagerEnv, tmp_path: Path
) -> None:
    computing_cluster, since = env.computing_cluster, env.computing_cluster.audit.mark()
    users = {each: f"{env.name}-{each}" for each in ("one", "two")}
    overseer = RingAdmin(env.computing_client, Names("kubeocean-manager"), namespace=SYSTEM)
    bindings = [env.other_binding() for _ in range(BINDINGS)]
    kubeconfig = env.worker.kubeconfig.read_bytes()
    replicas: dict[str, SyncerProcess] = {}

    async def shared() -> bool:
        for each in replicas.values():
            assert each.process.running, each.process.tail()
        try:
            table = (await overseer.state()).table
        except ConfigError:
            return False  # a ready replica may have no shards yet
        owners = {entry.owner for entry in table.entries}
        return len(owners) == len(replicas) and not table.draining()

    def did(name: str) -> list[AuditedRequest]:
        requests = computing_cluster.audit.requests(user=users[name], since=since)
        return [each for each in requests if each.verb in ("create", "patch") and each.code < 300]

    def looked_after(name: str) -> set[str]:
        written = [each for each in did(name) if each.resource == "clusterbindings"]
        return {each.name for each in written if each.subresource == "status"}

    async with AsyncExitStack() as stack:
        for name, user in users.items():
            replica = manager(
                name,
                "--sharding",
                kubeconfig=computing_cluster.user(user, ["system:masters"]),
                directory=tmp_path,
                templates=env.templates,
            )
            replicas[name] = await stack.enter_async_context(replica)
        for each in replicas.values():
            await until(each.is_ready)
        await until(shared)
        for binding in bindings:
            await binding.bind(kubeconfig)
        for binding in bindings:
            await binding.make_ready()
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
