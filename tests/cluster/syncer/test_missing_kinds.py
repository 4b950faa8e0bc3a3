"""Clusters that do not serve the kinds of Kubeocean: the error, and that it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conftest import NewCluster
from support.binding_env import BindingEnv
from support.crds import install_our_kinds
from support.syncer_process import syncer
from support.wait import until


async def test_a_cluster_without_the_kinds_is_reported_until_they_are_installed(
    binding_env: BindingEnv, new_cluster: NewCluster, tmp_path: Path
) -> None:
    bare = await new_cluster()
    admin = bare.user("admin", ("system:masters",))
    flags = (f"--cluster-binding-name={binding_env.name}", "--leader-elect=false")
    async with syncer("one", *flags, kubeconfig=admin, directory=tmp_path) as one:
        assert await one.process.wait() == 1
        (line,) = one.lines()
        assert "does not have the kind: install its definition (kubeocean install)" in line["error"]

    client = bare.client()
    unready = replace(binding_env, worker=bare, worker_api=client)
    await unready.bind()
    async with unready.syncing():

        async def reported() -> bool:
            return (await unready.condition("Connected"))[:2] == ("False", "PolicyKindMissing")

        await until(reported)
        assert "kubeocean join" in (await unready.condition("Connected"))[2]
        await install_our_kinds(client)

        async def connected() -> bool:
            return (await unready.condition("Connected"))[0] == "True"

        await until(connected)
    await client.close()
