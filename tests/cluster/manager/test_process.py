"""The process `kubeocean manager` on real control planes: how it starts, leads, and ends."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster
from kubeocean.manager.process import ManagerProgram
from kubeocean.manager.settings import ManagerSettings
from kubeocean.runtime import transport_layers
from kubeocean.runtime.flags import parse
from support.manager_env import ManagerEnv, relayed, retried_after_outage
from support.manager_process import manager
from support.syncer_process import LEASE_S
from support.wait import until

READS = ("get", "list", "watch")
MANAGER = "system:serviceaccount:kubeocean-system:kubeocean-manager"


def admin(env: ManagerEnv) -> bytes:
    return env.worker.kubeconfig.read_bytes()


def written(cluster: Cluster, user: str, since: int) -> list[str]:
    """Return the writes of a user that the server carried out."""
    made = cluster.audit.requests(user=user, since=since)
    return [
        f"{each.verb} {each.resource}"
        for each in made
        if each.verb not in READS and each.code < 400
    ]


async def test_one_manager_leads_and_a_paused_leader_writes_nothing_more(
    env: ManagerEnv, tmp_path: Path
) -> None:
    computing_cluster, templates = env.computing_cluster, env.templates
    user, later, begun = f"{env.name}-old", env.other_binding(), computing_cluster.audit.mark()
    path = computing_cluster.user(user, ["system:masters"])
    async with manager("old", kubeconfig=path, directory=tmp_path, templates=templates) as old:
        await env.bind(admin(env))
        await env.make_ready()
        await until(old.is_ready)
        assert await old.page("health", "/healthz") == (200, "ok")
        bound = await old.wait_for_output("Bound cluster")
        assert (bound["logger"], bound["binding"]) == ("kubeocean.audit", env.name)

        async def has_metrics() -> bool:
            _, text = await old.page("metrics", "/metrics")
            assert 'kubeocean_clusterbindings_total{status="Ready"} 1.0' in text
            assert f'kubeocean_manager_sync_total{{clusterbinding="{env.name}"}}' in text
            assert f'kubeocean_manager_sync_errors_total{{clusterbinding="{env.name}"}}' in text
            assert "kubeocean_manager_sync_duration_seconds_bucket" in text
            assert 'leader_election_master_status{name="kubeocean-manager-leader"} 1.0' in text
            return True

        await until(has_metrics)  # the cache of the manager may not have its last write yet
        async with manager(
            "new", kubeconfig=env.account, directory=tmp_path, templates=templates
        ) as new:
            await until(new.is_ready)  # a standby is ready
            assert not new.lines("Became leader")

            old.process.pause()
            await new.wait_for_output("Became leader", within=LEASE_S + 30)
            # The resumed leader would have to reconcile this new binding.
            await later.bind(admin(env))
            await later.make_ready()
            since = computing_cluster.audit.mark()
            old.process.resume()
            assert await old.process.wait() == 1
            await old.wait_for_output("Lost leadership")
            assert written(computing_cluster, user, since) == []

            await later.unbind()
            await until(later.is_gone)
            assert (await new.wait_for_output("Unbound cluster"))["binding"] == later.name
            await env.wait_for_phase("Ready")
            assert await new.process.stop() == 0
    assert len(await env.deployments()) == 2
    made = computing_cluster.audit.requests(user=MANAGER, since=begun)
    assert {"leases", "clusterbindings", "deployments"} <= {each.resource for each in made}
    assert [each for each in made if each.code == 403] == []


async def test_bindings_are_retried_at_once_after_an_outage_of_the_computing_cluster(
    env: ManagerEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_layers, "_OUTAGE_S", 0.0)  # an outage of any length
    async with relayed(env.computing_cluster) as relay, AsyncExitStack() as stack:
        kubeconfig = tmp_path / "relayed"
        kubeconfig.write_bytes(relay.kubeconfig(env.account))
        words = (f"--kubeconfig={kubeconfig}", "--leader-election-namespace=kubeocean-system")
        settings = parse(ManagerSettings, words)
        assert settings is not None
        syncers, proxiers = env.templates
        environ = {
            "KUBEOCEAN_SYNCER_TEMPLATE_DIR": str(syncers),
            "KUBEOCEAN_PROXIER_TEMPLATE_DIR": str(proxiers),
        }
        program = ManagerProgram(settings, environ, stack)
        program.prepare()
        bindings = program._manager._bindings
        retried = await retried_after_outage(relay, bindings._client, [bindings.controller])
        assert retried == [bindings.controller.name]


async def test_a_manager_that_cannot_start_prints_one_line(env: ManagerEnv, tmp_path: Path) -> None:
    async with manager(
        "one",
        "--leader-election-namespace=",
        kubeconfig=env.account,
        directory=tmp_path,
        templates=env.templates,
    ) as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert line["msg"] == "Could not start manager"
        assert "--leader-election-namespace: is required outside of a pod" in line["error"]
