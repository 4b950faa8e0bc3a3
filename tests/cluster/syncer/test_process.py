"""The process `kubeocean syncer` on two real control planes: how it starts, leads, and ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from kubeocean.api import naming
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.bound.identities import identity_of
from kubeocean.errors import NotFound
from kubeocean.local import accounts
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.fencing import Fenced
from kubeocean.runtime.goflags import parse
from kubeocean.runtime.kinds import LEASES, NAMESPACES, NODES, SECRETS, Lease
from kubeocean.runtime.patches import MergePatch
from kubeocean.sharding.heartbeat import MEMBER
from kubeocean.sharding.members import MemberRecord
from kubeocean.sharding.membertext import encode_member
from kubeocean.sharding.names import Names
from kubeocean.syncer.process import Program
from kubeocean.syncer.settings import Settings
from oceans import Sea
from syncers import HASTY, LEASE_S, SyncerProcess, syncer
from waiting import until

ADMINS = ("system:masters",)
READS = ("get", "list", "watch")
Start = Callable[..., AbstractAsyncContextManager[SyncerProcess]]


@pytest.fixture
def start(sea: Sea, tmp_path: Path) -> Start:
    """Starts a replica for this test's binding, under a user of its own."""

    def start(
        name: str = "one", *flags: str, **environ: str
    ) -> AbstractAsyncContextManager[SyncerProcess]:
        return syncer(
            name,
            f"--cluster-binding-name={sea.name}",
            *HASTY,
            *flags,
            kubeconfig=sea.computing.user(user(sea, name), ADMINS),
            directory=tmp_path,
            **environ,
        )

    return start


def user(sea: Sea, name: str) -> str:
    return f"{sea.name}-{name}"


async def lease(sea: Sea, name: str = "") -> Lease | None:
    try:
        return await sea.above.get(LEASES, name or f"kubeocean-syncer-{sea.name}", "default")
    except NotFound:
        return None


async def holder(sea: Sea) -> str:
    found = await lease(sea)
    return (found.spec.holder_identity or "") if found else ""


def written(cluster: Cluster, who: str, since: int = 0) -> list[AuditedRequest]:
    """The writes of a user that the server carried out."""
    asked = cluster.audit.requests(user=who, since=since)
    return [request for request in asked if request.verb not in READS and request.code < 400]


async def test_it_lends_and_can_be_looked_at_and_ends_well(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    for n in range(2):
        await sea.add_node(f"n{n}")
    async with start() as one:

        async def two() -> bool:
            return len(await sea.vnodes()) == 2

        await until(two)
        await until(one.is_ready)
        assert await one.page("health", "/healthz") == (200, "ok")
        assert await holder(sea)
        status, text = await one.page("metrics", "/metrics")
        assert status == 200
        assert 'leader_election_master_status{name="kubeocean-syncer-' in text
        assert "process_cpu_seconds_total" in text
        assert f'controller_runtime_reconcile_total{{controller="node-{sea.name}"' in text

        assert await one.process.stop() == 0
        assert one.lines("Stopped service")[-1]["code"] == 0
        assert {line["level"] for line in one.lines()} == {"info"}
        assert all(line["binding"] == sea.name for line in one.lines())
        assert await holder(sea) == ""
        assert len(await sea.vnodes()) == 2


async def test_without_an_election_there_is_no_lease(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    async with start("one", "--leader-elect=false", "--zap-devel") as one:
        await until(sea.vnodes)
        assert await lease(sea) is None
        assert await one.process.stop() == 0


async def test_flags_name_the_lease_and_everything_else(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    flags = ("--leader-election-id", f"mine-{sea.name}", "--prometheus-vnode-base-port", "9999")
    async with start("one", *flags, "--virtual-client-qps=50", "--physical-client-burst=5") as one:
        vnode = (await until(sea.vnodes))[0]
        assert await lease(sea, f"mine-{sea.name}") is not None
        assert vnode.name.startswith("vnode-")
        assert await one.process.stop() == 0


async def test_one_leads_and_a_paused_leader_writes_nothing_more(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    async with start("old") as old:
        await until(sea.vnodes)
        await until(old.is_ready)
        async with start("new") as new:
            await until(new.is_ready)  # who waits is ready to
            assert not new.lines("Became leader")
            first = await holder(sea)

            old.process.pause()
            await new.says("Became leader", within=LEASE_S + 20)
            assert await holder(sea) not in ("", first)
            # The old one will wake up to hear of nodes whose leases it would have to renew.
            for n in range(20):
                await sea.add_node(f"m{n}")

            async def all_there() -> bool:
                return len(await sea.vnodes()) == 21

            await until(all_there)
            since = sea.computing.audit.mark()
            old.process.resume()
            assert await old.process.wait() == 1
            await old.says("Lost leadership")
            assert written(sea.computing, user(sea, "old"), since) == []

            vnode = (await sea.vnodes())[0]
            await sea.above.delete(NODES, vnode.name, uid=vnode.uid)
            await until(lambda: made_again(sea, vnode.name, vnode.uid))
            assert written(sea.computing, user(sea, "new"), since)
            assert await new.process.stop() == 0
            assert await holder(sea) == ""


async def made_again(sea: Sea, name: str, uid: str) -> bool:
    found = {node.name: node.uid for node in await sea.vnodes()}
    return found.get(name, uid) != uid


async def test_who_does_not_lead_cannot_write_to_either_cluster(sea: Sea) -> None:
    await sea.bind()
    words = (f"--cluster-binding-name={sea.name}", f"--kubeconfig={sea.computing.kubeconfig}")
    settings = parse(Settings, [*words, "--leader-election-namespace=default"])
    assert settings is not None
    async with AsyncExitStack() as stack:
        program = Program(settings, {}, stack)
        await program.prepare()
        world = program.syncer.world
        for client in (world.computing, world.worker):
            assert (await client.get(NAMESPACES, "default")).name == "default"
            with pytest.raises(Fenced, match=f"does not lead kubeocean-syncer-{sea.name}"):
                await client.create(NAMESPACES, {"metadata": {"name": f"never-{sea.name}"}})
        assert world.reach.answers


async def test_a_successor_takes_over_at_once_from_one_that_stops(sea: Sea, start: Start) -> None:
    await sea.bind()
    async with start("old") as old, start("new") as new:
        await until(lambda: old.lines("Became leader") or new.lines("Became leader"))
        first, second = (old, new) if old.lines("Became leader") else (new, old)
        assert await first.process.stop() == 0
        await second.says("Became leader", within=LEASE_S)


async def test_who_leads_alone_waits_for_who_still_shares(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    names = Names(naming.syncer_ring(sea.name), f"sharding.{DEFAULT.name}")
    member = MemberRecord(id="replica_1", pulse="")
    metadata = {
        "name": names.member(member.id),
        "namespace": "default",
        "labels": names.labels(MEMBER),
        "annotations": {names.said: encode_member(member)},
    }
    spec = {"holderIdentity": member.id, "leaseDurationSeconds": 3600}
    shares = await sea.above.create(LEASES, {"metadata": metadata, "spec": spec})
    async with start() as one:
        await one.says("Waiting for replicas that share the work")
        assert (await one.page("health", "/readyz"))[0] == 200  # a rollout would wait otherwise
        assert await sea.vnodes() == []
        await sea.above.delete(LEASES, shares.name, "default", uid=shares.uid)
        await until(sea.vnodes)


async def test_a_rotated_secret_is_used_without_a_restart(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    async with start() as one:
        await until(sea.vnodes)
        for name, secret in (("second", sea.name), ("third", f"{sea.name}-other")):
            kubeconfig = sea.worker.user(user(sea, name), ADMINS).read_bytes()
            data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
            if secret == sea.name:
                await sea.above.patch(SECRETS, secret, MergePatch({"data": data}), "default")
            else:
                body = {"metadata": {"name": secret, "namespace": "default"}, "data": data}
                await sea.above.create(SECRETS, body)
                reference = {"name": secret, "namespace": "default"}
                moved = MergePatch({"spec": {"secretRef": reference}})
                await sea.above.patch(CLUSTER_BINDINGS, sea.name, moved)

            async def taken(name: str = name) -> bool:
                taken = one.lines("Took new worker credentials")
                return len(taken) == (1 if name == "second" else 2)

            await until(taken)
            await sea.add_node(name)

            async def used(name: str = name) -> bool:
                return bool(written(sea.worker, user(sea, name)))

            await until(used)
        assert len(one.lines("Started service")) == 1
        await lure(sea, one)
        assert await one.process.stop() == 0


async def test_a_kubeconfig_of_another_cluster_is_not_used_nor_after_a_restart(
    sea: Sea, start: Start
) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    wrong = user(sea, "wrong")

    async def connected() -> str:
        return (await sea.condition("Connected"))[1]

    async def keep(kubeconfig: Path) -> None:
        data = {"kubeconfig": base64.b64encode(kubeconfig.read_bytes()).decode()}
        await sea.above.patch(SECRETS, sea.name, MergePatch({"data": data}), "default")

    async with start() as one:
        (vnode,) = await until(sea.vnodes)

        async def recorded() -> bool:
            known = (await sea.binding()).annotations.get(DEFAULT.worker_cluster_id)
            return known == await identity_of(sea.below)

        await until(recorded)
        await keep(sea.computing.user(wrong, ADMINS))
        await until(lambda: is_(connected, "AnotherWorker"))
        assert "AnotherWorker" in await sea.events(sea.name)
        assert await one.process.stop() == 0
    async with start("two") as two:
        await two.says("Kubeconfig leads to another cluster")
        await sea.add_node("m")
        assert await connected() == "AnotherWorker"
        assert [each.uid for each in await sea.vnodes()] == [vnode.uid]
        asked = sea.computing.audit.requests(user=wrong)
        assert {(each.verb, each.resource, each.name) for each in asked} == {
            ("get", "namespaces", "kube-system")
        }
        await keep(sea.worker.kubeconfig)
        await until(lambda: is_(connected, "ConnectivityPassed"))

        async def both() -> bool:
            return len(await sea.vnodes()) == 2

        await until(both)
        assert await two.process.stop() == 0


async def is_(what: Callable[[], Awaitable[str]], wanted: str) -> bool:
    found = await what()
    assert found == wanted, found
    return True


async def lure(sea: Sea, one: SyncerProcess) -> None:
    """Who edits a binding cannot make a syncer take a kubeconfig from just anywhere."""
    reference = {"name": "kubeconfig", "namespace": "kube-system"}
    moved = MergePatch({"spec": {"secretRef": reference}})
    await sea.above.patch(CLUSTER_BINDINGS, sea.name, moved)
    await one.says("Did not follow binding to another namespace")

    async def told() -> bool:
        return "KubeconfigRefused" in await sea.events(sea.name)

    await until(told)


async def test_a_worker_that_is_down_at_the_start_is_waited_for(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.lend()
    await sea.add_node("n")
    await sea.worker.kill("kube-apiserver")
    try:
        async with start() as one:
            await one.says("Lost worker")
            assert (await one.page("health", "/healthz"))[0] == 200
            assert (await one.page("health", "/readyz"))[0] == 500
            await sea.worker.restart("kube-apiserver")
            await until(sea.vnodes)
            await until(one.is_ready)
            assert await one.process.stop() == 0
    finally:
        if not sea.worker.process("kube-apiserver").running:
            await sea.worker.restart("kube-apiserver")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cluster-binding-name=nobody"], "ClusterBinding nobody: is not in this cluster"),
        (["--kubeconfig=/nowhere"], "/nowhere: there is no such file"),
        (["--leader-election-namespace="], "--leader-election-namespace: is required outside"),
    ],
)
async def test_what_cannot_start_says_so_in_a_line(
    sea: Sea, start: Start, flags: list[str], said: str
) -> None:
    await sea.bind()
    async with start("one", *flags) as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert line["msg"] == "Could not start syncer"
        assert said in line["error"]


async def test_a_secret_without_a_kubeconfig_is_named(sea: Sea, start: Start) -> None:
    await sea.bind()
    await sea.above.patch(SECRETS, sea.name, MergePatch({"data": None}), "default")
    async with start() as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert f"Secret default/{sea.name}: data.kubeconfig: is missing" in line["error"]


async def test_a_flag_that_does_not_exist_ends_with_two(sea: Sea, start: Start) -> None:
    async with start("one", "--metrics-bind-adress=0") as one:
        assert await one.process.wait() == 2
        assert one.process.tail()[0] == (
            "error: --metrics-bind-adress: there is no such flag; "
            "did you mean --metrics-bind-address?"
        )


async def test_a_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    accepted = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        while await reader.read(4096):
            pass
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        kubeconfig = tmp_path / "kubeconfig"
        document = accounts.kubeconfig(
            "silent", f"http://{host}:{port}", b"", user="nobody", credential="token"
        )
        kubeconfig.write_bytes(document)
        flags = ("--cluster-binding-name=any",)
        async with syncer("one", *flags, kubeconfig=kubeconfig, directory=tmp_path) as one:
            await asyncio.wait_for(accepted.wait(), 30)
            assert await one.process.stop() == 143
            assert one.process.tail() == []
