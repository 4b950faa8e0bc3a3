"""The process `kubeocean syncer` on two real control planes: start, election, rotation, end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.errors import NotFound
from kubeocean.local import accounts
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.runtime import transport_layers
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.flags import parse
from kubeocean.runtime.kinds import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Lease,
)
from kubeocean.runtime.objects import Resource, Untyped
from kubeocean.runtime.transport_layers import Fenced
from kubeocean.sharding.heartbeat import MEMBER
from kubeocean.sharding.members import MemberRecord, encode_member
from kubeocean.sharding.names import Names
from kubeocean.syncer.process import SyncerProgram
from kubeocean.syncer.settings import SyncerSettings
from kubeocean.worker_access.identity import identity_of
from support.binding_env import BindingEnv
from support.controller_env import QUIET_S, REST_S
from support.manager_env import relayed, retried_after_outage
from support.syncer_process import HASTY, LEASE_S, SyncerProcess, syncer
from support.wait import until

ADMINS = ("system:masters",)
ROLES = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped
)
READS = ("get", "list", "watch")
Start = Callable[..., AbstractAsyncContextManager[SyncerProcess]]


@pytest.fixture
def start(binding_env: BindingEnv, tmp_path: Path) -> Start:
    """Starts a replica for this test's binding, under a user of its own."""

    def start(
        name: str = "one", *flags: str, **environ: str
    ) -> AbstractAsyncContextManager[SyncerProcess]:
        return syncer(
            name,
            f"--cluster-binding-name={binding_env.name}",
            *HASTY,
            *flags,
            kubeconfig=binding_env.computing.user(user(binding_env, name), ADMINS),
            directory=tmp_path,
            **environ,
        )

    return start


def user(binding_env: BindingEnv, name: str) -> str:
    return f"{binding_env.name}-{name}"


async def lease(binding_env: BindingEnv, name: str = "") -> Lease | None:
    try:
        return await binding_env.computing_api.get(
            LEASES, name or f"kubeocean-syncer-{binding_env.name}", "default"
        )
    except NotFound:
        return None


async def holder(binding_env: BindingEnv) -> str:
    current = await lease(binding_env)
    return (current.spec.holder_identity or "") if current else ""


def written(cluster: Cluster, user: str, since: int = 0) -> list[AuditedRequest]:
    """Return the writes of a user that the server accepted."""
    requests = cluster.audit.requests(user=user, since=since)
    return [request for request in requests if request.verb not in READS and request.code < 400]


async def writes_nothing(cluster: Cluster, user: str) -> None:
    """Wait until a user has no more to write to a cluster, and check that no write follows."""
    counts = [-1]

    async def rests() -> bool:
        before, counts[:] = counts[:], [len(written(cluster, user))]
        return before == counts

    await until(rests, every=REST_S)
    await asyncio.sleep(QUIET_S)  # the test needs this time to pass
    writes = written(cluster, user)
    assert len(writes) == counts[0], writes[counts[0] :]


async def test_a_syncer_lends_exposes_metrics_and_exits_cleanly(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    for n in range(2):
        await binding_env.add_node(f"n{n}")
    async with start() as one:

        async def two() -> bool:
            return len(await binding_env.vnodes()) == 2

        await until(two)
        await until(one.is_ready)
        assert await one.page("health", "/healthz") == (200, "ok")
        assert await holder(binding_env)
        status, text = await one.page("metrics", "/metrics")
        assert status == 200
        assert 'leader_election_master_status{name="kubeocean-syncer-' in text
        assert "process_cpu_seconds_total" in text
        assert f'controller_runtime_reconcile_total{{controller="node-{binding_env.name}"' in text

        assert await one.process.stop() == 0
        assert one.lines("Stopped service")[-1]["code"] == 0
        assert {line["level"] for line in one.lines()} == {"info"}
        assert all(line["binding"] == binding_env.name for line in one.lines())
        assert await holder(binding_env) == ""
        assert len(await binding_env.vnodes()) == 2


async def test_a_syncer_finds_proxiers_in_the_namespace_that_the_manager_names(
    binding_env: BindingEnv, namespace: str, start: Start
) -> None:
    labels = {
        "app.kubernetes.io/name": "kubeocean-proxier",
        "app.kubernetes.io/instance": binding_env.name,
    }
    spec = {"nodeName": "none", "containers": [{"name": "c", "image": "none"}]}
    body = {"metadata": {"name": "proxier", "labels": labels}, "spec": spec}
    await binding_env.computing_api.create(PODS, body, namespace=namespace)
    running_at = MergePatch({"status": {"phase": "Running", "podIP": "10.9.8.7"}})
    await binding_env.computing_api.patch(
        PODS, "proxier", running_at, namespace, subresource="status"
    )
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    async with start("one", KUBEOCEAN_PROXIER_NAMESPACE=namespace):

        async def has_address() -> bool:
            nodes = [each.content() for each in await binding_env.vnodes()]
            addresses = [address for each in nodes for address in each["status"]["addresses"]]
            return {"type": "InternalIP", "address": "10.9.8.7"} in addresses

        await until(has_address)


async def test_without_an_election_there_is_no_lease(binding_env: BindingEnv, start: Start) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    async with start("one", "--leader-elect=false", "--zap-devel") as one:
        await until(binding_env.vnodes)
        assert await lease(binding_env) is None
        assert await one.process.stop() == 0


async def test_flags_name_the_lease_and_everything_else(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    flags = (
        "--leader-election-id",
        f"mine-{binding_env.name}",
        "--prometheus-vnode-base-port",
        "9999",
    )
    async with start("one", *flags, "--virtual-client-qps=50", "--physical-client-burst=5") as one:
        vnode = (await until(binding_env.vnodes))[0]
        assert await lease(binding_env, f"mine-{binding_env.name}") is not None
        assert vnode.name.startswith("vnode-")
        assert await one.process.stop() == 0


async def test_one_replica_leads_and_a_paused_leader_writes_nothing_more(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    async with start("old") as old:
        await until(binding_env.vnodes)
        await until(old.is_ready)
        async with start("new") as new:
            await until(new.is_ready)  # a replica that waits for the lease is ready
            assert not new.lines("Became leader")
            first = await holder(binding_env)

            old.process.pause()
            await new.wait_for_output("Became leader", within=LEASE_S + 20)
            assert await holder(binding_env) not in ("", first)
            # When the old leader resumes, its caches show nodes whose leases it would renew.
            for n in range(20):
                await binding_env.add_node(f"m{n}")

            async def all_there() -> bool:
                return len(await binding_env.vnodes()) == 21

            await until(all_there)
            since = binding_env.computing.audit.mark()
            old.process.resume()
            assert await old.process.wait() == 1
            await old.wait_for_output("Lost leadership")
            assert written(binding_env.computing, user(binding_env, "old"), since) == []

            vnode = (await binding_env.vnodes())[0]
            await binding_env.computing_api.delete(NODES, vnode.name, uid=vnode.uid)
            await until(lambda: made_again(binding_env, vnode.name, vnode.uid))
            await until(lambda: written(binding_env.computing, user(binding_env, "new"), since))
            assert await new.process.stop() == 0
            assert await holder(binding_env) == ""


async def made_again(binding_env: BindingEnv, name: str, uid: str) -> bool:
    uids = {node.name: node.uid for node in await binding_env.vnodes()}
    return uids.get(name, uid) != uid


async def test_a_replica_that_does_not_lead_cannot_write_to_either_cluster(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    words = (
        f"--cluster-binding-name={binding_env.name}",
        f"--kubeconfig={binding_env.computing.kubeconfig}",
    )
    settings = parse(SyncerSettings, [*words, "--leader-election-namespace=default"])
    assert settings is not None
    async with AsyncExitStack() as stack:
        program = SyncerProgram(settings, {}, stack)
        await program.prepare()
        clusters = program.syncer.clusters
        for client in (clusters.computing, clusters.worker):
            assert (await client.get(NAMESPACES, "default")).name == "default"
            with pytest.raises(Fenced, match=f"does not lead kubeocean-syncer-{binding_env.name}"):
                await client.create(NAMESPACES, {"metadata": {"name": f"never-{binding_env.name}"}})
        assert clusters.worker_health.answers


async def test_all_controllers_retry_at_once_after_an_outage_of_the_computing_cluster(
    binding_env: BindingEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_layers, "_OUTAGE_S", 0.0)  # an outage of any length
    await binding_env.bind()
    async with relayed(binding_env.computing) as relay, AsyncExitStack() as stack:
        kubeconfig = tmp_path / "relayed"
        kubeconfig.write_bytes(relay.kubeconfig())
        words = (f"--cluster-binding-name={binding_env.name}", f"--kubeconfig={kubeconfig}")
        settings = parse(SyncerSettings, [*words, "--leader-election-namespace=default"])
        assert settings is not None
        program = SyncerProgram(settings, {}, stack)
        await program.prepare()
        syncer = program.syncer
        controllers = [part for part in syncer.parts if isinstance(part, Controller)]
        named = {syncer.bindings.controller, syncer.nodes.controller, syncer.pods.controller}
        assert named <= set(controllers)
        retried = await retried_after_outage(relay, syncer.clusters.computing, controllers)
        assert retried == [each.name for each in controllers]


async def test_a_successor_takes_over_at_once_from_a_leader_that_stops(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    async with start("old") as old, start("new") as new:
        await until(lambda: old.lines("Became leader") or new.lines("Became leader"))
        first, second = (old, new) if old.lines("Became leader") else (new, old)
        before = await holder(binding_env)
        assert before
        assert await first.process.stop() == 0
        assert await holder(binding_env) != before  # the lease was released
        await second.wait_for_output("Became leader")


async def test_a_leader_without_sharding_waits_for_replicas_that_still_share(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    names = Names(naming.syncer_ring(binding_env.name), f"sharding.{DEFAULT.name}")
    member = MemberRecord(id="replica_1", pulse="")
    metadata = {
        "name": names.member(member.id),
        "namespace": "default",
        "labels": names.labels(MEMBER),
        "annotations": {names.record: encode_member(member)},
    }
    spec = {"holderIdentity": member.id, "leaseDurationSeconds": 3600}
    shares = await binding_env.computing_api.create(LEASES, {"metadata": metadata, "spec": spec})
    async with start() as one:
        await one.wait_for_output(
            "Postponed the start until replicas that run with sharding have stopped"
        )
        assert (await one.page("health", "/readyz"))[0] == 200  # a rollout would wait otherwise
        assert await binding_env.vnodes() == []
        await binding_env.computing_api.delete(LEASES, shares.name, "default", uid=shares.uid)
        await until(binding_env.vnodes)


async def test_a_rotated_secret_is_used_without_a_restart(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    async with start() as one:
        await until(binding_env.vnodes)
        for name, secret in (("second", binding_env.name), ("third", f"{binding_env.name}-other")):
            kubeconfig = binding_env.worker.user(user(binding_env, name), ADMINS).read_bytes()
            data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
            if secret == binding_env.name:
                await binding_env.computing_api.patch(
                    SECRETS, secret, MergePatch({"data": data}), "default"
                )
            else:
                body = {"metadata": {"name": secret, "namespace": "default"}, "data": data}
                await binding_env.computing_api.create(SECRETS, body)
                reference = {"name": secret, "namespace": "default"}
                moved = MergePatch({"spec": {"secretRef": reference}})
                await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, moved)

            async def taken(name: str = name) -> bool:
                taken = one.lines("Loaded new worker credentials")
                return len(taken) == (1 if name == "second" else 2)

            await until(taken)
            await binding_env.add_node(name)

            async def used(name: str = name) -> bool:
                return bool(written(binding_env.worker, user(binding_env, name)))

            await until(used)
        assert len(one.lines("Started service")) == 1
        await lure(binding_env, one)
        assert await one.process.stop() == 0


async def test_an_expired_token_loses_nothing_and_a_new_one_needs_no_restart(
    binding_env: BindingEnv, start: Start, namespace: str
) -> None:
    """A token that the API server accepts no more, as after its expiry."""
    worker, name = binding_env.worker, f"token-{binding_env.name}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": "cluster-admin"}
    body = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
    await binding_env.worker_api.create(ROLES, body)

    async def use_token() -> None:
        kubeconfig = (await worker.service_account("default", name)).read_bytes()
        data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
        await binding_env.computing_api.patch(
            SECRETS, binding_env.name, MergePatch({"data": data}), "default"
        )

    async def connected(expected: str) -> str:
        status, _, message = await binding_env.condition("Connected")
        assert status == expected, message
        return message

    await binding_env.bind()
    await use_token()
    await binding_env.lend(forceReclaim=True)
    await binding_env.add_node("n")
    async with start() as one:
        (vnode,) = await until(binding_env.vnodes)
        await until(lambda: connected("True"))
        pod = await binding_env.create_bound_pod(namespace, "web", vnode.name)
        account = await binding_env.worker_api.get(SERVICE_ACCOUNTS, name, "default")
        await binding_env.worker_api.delete(SERVICE_ACCOUNTS, name, "default", uid=account.uid)
        message = await until(lambda: connected("False"), within=180)
        assert "does not accept the credential of the kubeconfig" in message
        assert [each.uid for each in await binding_env.vnodes()] == [vnode.uid]
        mark = worker.audit.mark()
        await use_token()
        await until(lambda: connected("True"), within=120)
        assert len(one.lines("Started service")) == 1
        await binding_env.add_node("m")

        async def both_lent() -> bool:
            return len(await binding_env.vnodes()) == 2

        await until(both_lent)
        account_user = f"system:serviceaccount:default:{name}"
        assert worker.audit.requests(user=account_user, since=mark)
        assert not await binding_env.is_gone(pod)
        assert vnode.uid in [each.uid for each in await binding_env.vnodes()]
        await writes_nothing(worker, account_user)
        assert await one.process.stop() == 0


async def test_a_kubeconfig_of_another_cluster_is_not_used_even_after_a_restart(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    wrong = user(binding_env, "wrong")

    async def connected() -> str:
        return (await binding_env.condition("Connected"))[1]

    async def keep(kubeconfig: Path) -> None:
        data = {"kubeconfig": base64.b64encode(kubeconfig.read_bytes()).decode()}
        await binding_env.computing_api.patch(
            SECRETS, binding_env.name, MergePatch({"data": data}), "default"
        )

    async with start() as one:
        (vnode,) = await until(binding_env.vnodes)

        async def recorded() -> bool:
            known = (await binding_env.binding()).annotations.get(DEFAULT.worker_cluster_id)
            return known == await identity_of(binding_env.worker_api)

        await until(recorded)
        await keep(binding_env.computing.user(wrong, ADMINS))
        await until(lambda: is_(connected, "AnotherWorker"))
        assert "AnotherWorker" in await binding_env.events(binding_env.name)
        assert await one.process.stop() == 0
    async with start("two") as two:
        await two.wait_for_output("Rejected kubeconfig of worker, it points to another cluster")
        await binding_env.add_node("m")
        assert await connected() == "AnotherWorker"
        assert [each.uid for each in await binding_env.vnodes()] == [vnode.uid]
        requests = binding_env.computing.audit.requests(user=wrong)
        assert {(each.verb, each.resource, each.name) for each in requests} == {
            ("get", "namespaces", "kube-system")
        }
        await keep(binding_env.worker.kubeconfig)
        await until(lambda: is_(connected, "ConnectivityPassed"))

        async def both() -> bool:
            return len(await binding_env.vnodes()) == 2

        await until(both)
        assert await two.process.stop() == 0


async def is_(what: Callable[[], Awaitable[str]], wanted: str) -> bool:
    value = await what()
    assert value == wanted, value
    return True


async def lure(binding_env: BindingEnv, one: SyncerProcess) -> None:
    """Point the binding at a Secret of another namespace, which the syncer must refuse."""
    reference = {"name": "kubeconfig", "namespace": "kube-system"}
    moved = MergePatch({"spec": {"secretRef": reference}})
    await binding_env.computing_api.patch(CLUSTER_BINDINGS, binding_env.name, moved)
    await one.wait_for_output(
        "Rejected kubeconfig Secret in a namespace that is not allowed, kept the old one"
    )

    async def refused() -> bool:
        return "KubeconfigRefused" in await binding_env.events(binding_env.name)

    await until(refused)


async def test_a_worker_that_is_down_at_the_start_is_waited_for(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n")
    await binding_env.worker.kill("kube-apiserver")
    try:
        async with start() as one:
            await one.wait_for_output("Lost connection to worker")
            assert (await one.page("health", "/healthz"))[0] == 200
            assert (await one.page("health", "/readyz"))[0] == 500
            await binding_env.worker.restart("kube-apiserver")
            await until(binding_env.vnodes)
            await until(one.is_ready)
            assert await one.process.stop() == 0
    finally:
        if not binding_env.worker.process("kube-apiserver").running:
            await binding_env.worker.restart("kube-apiserver")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cluster-binding-name=missing"], "ClusterBinding missing: is not in this cluster"),
        (["--kubeconfig=/nowhere"], "/nowhere: there is no such file"),
        (["--leader-election-namespace="], "--leader-election-namespace: is required outside"),
    ],
)
async def test_a_failed_start_prints_one_line(
    binding_env: BindingEnv, start: Start, flags: list[str], message: str
) -> None:
    await binding_env.bind()
    async with start("one", *flags) as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert line["msg"] == "Could not start syncer"
        assert message in line["error"]


async def test_a_secret_without_a_kubeconfig_is_named(
    binding_env: BindingEnv, start: Start
) -> None:
    await binding_env.bind()
    await binding_env.computing_api.patch(
        SECRETS, binding_env.name, MergePatch({"data": None}), "default"
    )
    async with start() as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert f"Secret default/{binding_env.name}: data.kubeconfig: is missing" in line["error"]


async def test_a_flag_that_does_not_exist_ends_with_two(
    binding_env: BindingEnv, start: Start
) -> None:
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
            "silent", f"http://{host}:{port}", b"", user="none", credential="token"
        )
        kubeconfig.write_bytes(document)
        flags = ("--cluster-binding-name=any",)
        async with syncer("one", *flags, kubeconfig=kubeconfig, directory=tmp_path) as one:
            await asyncio.wait_for(accepted.wait(), 30)
            assert await one.process.stop() == 143
            assert one.process.tail() == []
