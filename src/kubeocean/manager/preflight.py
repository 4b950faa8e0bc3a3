"""Preflight: is a worker ready for a syncer, before one is sent?

The mount namespace has to be there; where the credential may, it is made. Then the worker itself is
asked for every right that the shipped role grants, one by one, so that what is missing can be named
to the letter. Add-ons are asked for, too, but nobody waits for them. Nor for the right to see which
cluster it is: workers that were joined before it was in the role go on as they did. So do those
whose credential may read metrics itself, which was the add-on before there was an account for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubeocean.api.group import Domain
from kubeocean.errors import AlreadyExists, Forbidden, NotFound
from kubeocean.installation.parts import labels
from kubeocean.installation.reviews import granted
from kubeocean.installation.rights import Permission
from kubeocean.installation.roles import (
    ALL_ADD_ONS,
    IDENTITY,
    AddOn,
    metrics_rights,
    worker_rights,
)
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES

__all__ = ["Place", "Reviewed", "ensure_namespace", "review", "summary"]


@dataclass(frozen=True, slots=True)
class Place:
    """The mount namespace: `error` is why it cannot be used, `created` whether we made it."""

    error: str = ""
    created: bool = False


@dataclass(frozen=True, slots=True)
class Reviewed:
    """Rights that are needed and missing, and add-ons that are not granted in full."""

    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


async def ensure_namespace(worker: Client, name: str, domain: Domain) -> Place:
    """See to it that the mount namespace is there.

    :raises ApiError: the worker could not be asked.
    """
    try:
        found = await worker.get(NAMESPACES, name)
    except Forbidden:
        return Place()  # who may not even look is told so with all the other rights
    except NotFound:
        return await _create(worker, name, domain)
    return Place(f"namespace {name} is being deleted" if found.deleting else "")


async def _create(worker: Client, name: str, domain: Domain) -> Place:
    body = {"metadata": {"name": name, "labels": labels(domain)}}
    try:
        await worker.create(NAMESPACES, body)
    except AlreadyExists:
        return Place()
    except Forbidden:
        said = f"there is no namespace {name} in the worker, and the credential may not make one"
        return Place(said)
    return Place(created=True)


async def review(worker: Client, mount_namespace: str, domain: Domain) -> Reviewed:
    """Ask the worker what the credential may do there.

    :raises ApiError: the worker could not be asked.
    """
    unasked = set(IDENTITY.permissions())
    rights = worker_rights(mount_namespace, ()).permissions()
    needed = [each for each in rights if each not in unasked]
    ways = {
        each: [set(worker_rights(mount_namespace, (each,), domain).permissions()) - set(needed)]
        for each in ALL_ADD_ONS
    }
    ways[AddOn.METRICS].append(set(metrics_rights().permissions()))
    extra = {one for each in ways.values() for many in each for one in many} - unasked
    allowed = set(await granted(worker, [*needed, *sorted(extra)]))
    missing = [each for each in needed if each not in allowed]
    without = [
        str(add_on)
        for add_on, each in ways.items()
        if not any(many - unasked <= allowed for many in each)
    ]
    return Reviewed(tuple(summary(missing)), tuple(without))


def summary(permissions: Iterable[Permission]) -> list[str]:
    """Permissions on one resource in one place as one: `create, patch pods in team-a`."""
    verbs: dict[Permission, list[str]] = {}
    for each in permissions:
        verbs.setdefault(each._replace(verb=""), []).append(each.verb)
    return [f"{', '.join(many)}{each}" for each, many in verbs.items()]
