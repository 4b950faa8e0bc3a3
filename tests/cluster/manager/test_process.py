"""The process `kubeocean manager` on real control planes: how it starts, leads, and ends."""

from __future__ import annotations

from pathlib import Path

from kubeocean.local.cluster import Cluster
from managers import manager
from managing import Harbour
from syncers import LEASE_S
from waiting import until

READS = ("get", "list", "watch")
MANAGER = "system:serviceaccount:kubeocean-system:kubeocean-manager"


def admin(harbour: Harbour) -> bytes:
    return harbour.worker.kubeconfig.read_bytes()


def written(cluster: Cluster, user: str, since: int) -> list[str]:
    """The writes of a user that the server carried out."""
    made = cluster.audit.requests(user=user, since=since)
    return [
        f"{each.verb} {each.resource}"
        for each in made
        if each.verb not in READS and each.code < 400
    ]


async def test_one_leads_and_a_paused_leader_writes_nothing_more(
    harbour: Harbour, tmp_path: Path
) -> None:
    home, templates = harbour.home, harbour.templates
    user, later, begun = f"{harbour.name}-old", harbour.neighbour(), home.audit.mark()
    path = home.user(user, ["system:masters"])
    async with manager("old", kubeconfig=path, directory=tmp_path, templates=templates) as old:
        await harbour.bind(admin(harbour))
        await harbour.becomes_ready()
        await until(old.is_ready)
        assert await old.page("health", "/healthz") == (200, "ok")
        bound = await old.says("Bound cluster")
        assert (bound["logger"], bound["binding"]) == ("kubeocean.audit", harbour.name)
        _, text = await old.page("metrics", "/metrics")
        assert 'kubeocean_clusterbindings_total{status="Ready"} 1.0' in text
        assert f'kubeocean_manager_sync_total{{clusterbinding="{harbour.name}"}}' in text
        assert f'kubeocean_manager_sync_errors_total{{clusterbinding="{harbour.name}"}}' in text
        assert "kubeocean_manager_sync_duration_seconds_bucket" in text
        assert 'leader_election_master_status{name="kubeocean-manager-leader"} 1.0' in text
        async with manager(
            "new", kubeconfig=harbour.account, directory=tmp_path, templates=templates
        ) as new:
            await until(new.is_ready)  # who waits is ready to
            assert not new.lines("Became leader")

            old.process.pause()
            await new.says("Became leader", within=LEASE_S + 30)
            # The old one will wake up to hear of a binding that it would have to look after.
            await later.bind(admin(harbour))
            await later.becomes_ready()
            since = home.audit.mark()
            old.process.resume()
            assert await old.process.wait() == 1
            await old.says("Lost leadership")
            assert written(home, user, since) == []

            await later.unbind()
            await until(later.is_gone)
            assert (await new.says("Unbound cluster"))["binding"] == later.name
            await harbour.is_in("Ready")
            assert await new.process.stop() == 0
    assert len(await harbour.deployments()) == 2
    made = home.audit.requests(user=MANAGER, since=begun)
    assert {"leases", "clusterbindings", "deployments"} <= {each.resource for each in made}
    assert [each for each in made if each.code == 403] == []


async def test_what_cannot_start_says_so_in_a_line(harbour: Harbour, tmp_path: Path) -> None:
    async with manager(
        "one",
        "--leader-election-namespace=",
        kubeconfig=harbour.account,
        directory=tmp_path,
        templates=harbour.templates,
    ) as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert line["msg"] == "Could not start manager"
        assert "--leader-election-namespace: is required outside of a pod" in line["error"]
