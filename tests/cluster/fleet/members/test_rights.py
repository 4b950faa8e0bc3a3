"""Rights of a member's identity on the hub: its own namespace, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from kubeocean.api.fleet.clusters import INTERNAL_MEMBER_CLUSTERS, MEMBER_CLUSTERS
from kubeocean.api.fleet.names import SYSTEM_NAMESPACE, member_namespace
from kubeocean.api.fleet.works import WORKS
from kubeocean.errors import Forbidden
from kubeocean.install.permissions import Permission
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.discovery import Discovery
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SECRETS
from support.fleet_env import FleetEnv

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
FLEET_GROUPS = (
    "cluster.kubernetes-fleet.io",
    "placement.kubernetes-fleet.io",
    "networking.fleet.azure.com",
)
EVENT_VERBS = {"get", "list", "update", "patch", "watch", "create"}
ABREAST = 16
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def granted(env: FleetEnv, user: str, wanted: Iterable[Permission]) -> set[Permission]:
    """Return which permissions the hub's API server would grant a user."""
    slots = asyncio.Semaphore(ABREAST)

    async def review(permission: Permission) -> bool:
        spec = {
            "user": user,
            "groups": ["system:authenticated"],
            "resourceAttributes": permission.attributes(),
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        async with slots:
            answer = await env.hub.request_json("POST", REVIEWS, body=body)
        return bool(answer["status"]["allowed"])

    permissions = list(wanted)
    allowed = await asyncio.gather(*(review(each) for each in permissions))
    return {each for each, is_allowed in zip(permissions, allowed, strict=True) if is_allowed}


async def test_an_identity_has_its_own_namespace_and_no_other(env: FleetEnv) -> None:
    async with env.hub_running():
        own, other = (await env.join()).name, (await env.join()).name
        for name in (own, other):
            await env.wait_for(name, "ReadyToJoin", "True")
    resources = await Discovery(env.hub).resources()
    names = {
        (each.group, plural, each.namespaced)
        for each in resources
        for plural in (each.plural, *(f"{each.plural}/{sub}" for sub in each.subresources))
    }
    anywhere = [
        Permission(verb, group, plural, space)
        for group, plural, namespaced in names
        for space in (
            (member_namespace(other), SYSTEM_NAMESPACE, "default", "") if namespaced else ("",)
        )
        for verb in VERBS
    ]
    # Every authenticated user may review its own rights.
    reviews = {"authorization.k8s.io", "authentication.k8s.io"}
    elsewhere = await granted(env, f"agent-of-{own}", anywhere)
    assert {each for each in elsewhere if each.group not in reviews} == set()
    inside = [
        Permission(verb, group, plural, member_namespace(own))
        for group, plural, namespaced in names
        if namespaced
        for verb in VERBS
    ]
    allowed = await granted(env, f"agent-of-{own}", inside)
    beyond = {
        each
        for each in allowed
        if each.group not in FLEET_GROUPS
        and not (each.resource == "events" and not each.group and each.verb in EVENT_VERBS)
    }
    assert {each for each in beyond if each.group not in reviews} == set()
    assert (
        Permission(
            "update", FLEET_GROUPS[0], "internalmemberclusters/status", member_namespace(own)
        )
        in allowed
    )
    assert Permission("watch", FLEET_GROUPS[1], "works", member_namespace(own)) in allowed


async def test_what_an_identity_tries_is_refused(env: FleetEnv) -> None:
    async with env.hub_running():
        own, other = (await env.join()).name, (await env.join()).name
        for name in (own, other):
            await env.wait_for(name, "ReadyToJoin", "True")
    client = env.hub_cluster.client(kubeconfig=env.identity(own))
    space = member_namespace(other)
    label = MergePatch({"metadata": {"labels": {"x": "y"}}})
    try:
        assert (await client.list(WORKS, member_namespace(own))).items == []
        for attempt in (
            lambda: client.get(INTERNAL_MEMBER_CLUSTERS, other, space),
            lambda: client.patch(INTERNAL_MEMBER_CLUSTERS, other, label, space),
            lambda: client.list(WORKS, space),
            lambda: client.list(WORKS),
            lambda: client.list(INTERNAL_MEMBER_CLUSTERS),
            lambda: client.list(SECRETS, member_namespace(own)),
            lambda: client.list(SECRETS),
            lambda: client.list(MEMBER_CLUSTERS),
            lambda: client.patch(MEMBER_CLUSTERS, own, label),
            lambda: client.patch(NAMESPACES, member_namespace(own), label),
            lambda: client.get(CUSTOM_RESOURCE_DEFINITIONS, "works.placement.kubernetes-fleet.io"),
        ):
            with pytest.raises(Forbidden):
                await attempt()
    finally:
        await client.close()
