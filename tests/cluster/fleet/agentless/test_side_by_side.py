"""Members with and without an agent: their objects on the hub do not differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubeocean.api.fleet.clusters import INTERNAL_MEMBER_CLUSTERS, MEMBER_CLUSTERS
from kubeocean.api.fleet.inventory import CLUSTER_PROFILES
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE, member_namespace
from kubeocean.fleet.applier import WorkApplier
from kubeocean.fleet.extensions import chosen
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json
from support.agentless_env import AgentlessEnv
from support.wait import until

TIMES = (
    "creationTimestamp",
    "lastTransitionTime",
    "observationTime",
    "lastReceivedHeartbeat",
    "lastObservedTime",
)
# Fields that the server sets or that name other objects: the member's identity, and its binding
IDENTITIES = ("uid", "resourceVersion", "managedFields", "ownerReferences", "identity")


def anonymous(document: Any, name: str) -> Any:
    """Return a document with NAME in the place of a name, and without times and identities."""
    if isinstance(document, dict):
        return {
            key: anonymous(value, name)
            for key, value in document.items()
            if key not in (*TIMES, *IDENTITIES)
        }
    if isinstance(document, list):
        return [anonymous(each, name) for each in document]
    return document.replace(name, "NAME") if isinstance(document, str) else document


def all_times(document: Any) -> set[str]:
    """Return the names of all times that a document has."""
    if isinstance(document, dict):
        own = {key for key in document if key in TIMES}
        return own.union(*(all_times(value) for value in document.values()))
    return (
        set().union(*(all_times(each) for each in document))
        if isinstance(document, list)
        else set()
    )


async def documents(env: AgentlessEnv, name: str) -> dict[str, Json]:
    """Return the MemberCluster, InternalMemberCluster and ClusterProfile of a member."""
    hub = env.fleet.hub
    stored = {
        "member": await hub.get(MEMBER_CLUSTERS, name, keep_raw=True),
        "internal": await hub.get(
            INTERNAL_MEMBER_CLUSTERS, name, member_namespace(name), keep_raw=True
        ),
        "profile": await hub.get(CLUSTER_PROFILES, name, SYSTEM_NAMESPACE, keep_raw=True),
    }
    return {kind: each.content() for kind, each in stored.items()}


@pytest.mark.parametrize("extended", [True, False], ids=["extended", "upstream"])
async def test_a_member_without_an_agent_looks_like_one_with_an_agent(
    env: AgentlessEnv, tmp_path: Path, extended: bool
) -> None:
    extensions, fleet = chosen(extended), env.fleet
    without, having = await env.bind(), (await fleet.join()).name

    def new_applier(hub: Client, member: Client) -> Any:
        space = member_namespace(having)
        return lambda: WorkApplier(hub, member, namespace=space, trackers=extensions.tracker)

    flag = f"--status-extensions={str(extended).lower()}"
    async with (
        fleet.hub_running(extensions=extensions),
        fleet.agent_running(having, new_applier=new_applier, extensions=extensions),
        env.syncing(without, tmp_path, flag),
    ):
        await env.annotate(without)
        await env.wait_for_binding(without, "True", "Joined")
        for name in (without, having):
            await fleet.wait_for(name, "Joined", "True")

        async def same() -> bool:
            ours, theirs = await documents(env, without), await documents(env, having)
            assert anonymous(ours, without) == anonymous(theirs, having)
            assert all_times(ours) == all_times(theirs)
            return len(ours["member"]["status"]["properties"]) >= (3 if extended else 1)

        await until(same)
        member = await fleet.get(without)
        assert member.spec.identity.name == "kubeocean-syncer"
        owners = [(each.kind, each.name) for each in member.metadata.owner_references or ()]
        assert owners == [("ClusterBinding", without)]
