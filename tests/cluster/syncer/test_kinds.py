"""Clusters that do not know our kinds: people are told, and what they mend is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conftest import NewCluster
from oceans import Sea
from ourkinds import install_our_kinds
from syncers import syncer
from waiting import until


async def test_a_cluster_without_our_kinds_says_so_and_is_noticed_when_it_has_them(
    sea: Sea, new_cluster: NewCluster, tmp_path: Path
) -> None:
    bare = await new_cluster()
    admin = bare.user("admin", ("system:masters",))
    flags = (f"--cluster-binding-name={sea.name}", "--leader-elect=false")
    async with syncer("one", *flags, kubeconfig=admin, directory=tmp_path) as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert "does not know the kind: install its definition (kubeocean install)" in line["error"]

    below = bare.client()
    unready = replace(sea, worker=bare, below=below)
    await unready.bind()
    async with unready.syncing():

        async def told() -> bool:
            return (await unready.condition("Connected"))[:2] == ("False", "PolicyKindMissing")

        await until(told)
        assert "kubeocean join" in (await unready.condition("Connected"))[2]
        await install_our_kinds(below)

        async def connected() -> bool:
            return (await unready.condition("Connected"))[0] == "True"

        await until(connected)
    await below.close()
