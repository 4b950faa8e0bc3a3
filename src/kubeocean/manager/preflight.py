"""Checks that a worker has the mount namespace and permissions that a syncer needs.

A missing mount namespace is created if the credential may do so. Then one access review is sent for
each permission of the shipped role, so that missing permissions can be named exactly. Missing
add-ons do not block the rollout. Neither do the permissions to read the cluster's identity and the
NetworkPolicy of the mount namespace, which roles of workers that joined earlier do not have. The
metrics add-on also counts as granted if the credential itself may read metrics, as it could before
metrics had an account of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubeocean.api.group import Domain
from kubeocean.errors import AlreadyExists, Forbidden, NotFound
from kubeocean.install.access_reviews import granted
from kubeocean.install.object_parts import labels
from kubeocean.install.permissions import Permission
from kubeocean.install.roles import (
    ALL_ADD_ONS,
    IDENTITY,
    AddOn,
    egress_rule,
    metrics_rights,
    worker_rights,
)
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES

__all__ = ["MountNamespace", "PermissionReview", "ensure_namespace", "review", "summary"]


@dataclass(frozen=True, slots=True)
class MountNamespace:
    """The state of the mount namespace: why it cannot be used, and whether it was created."""

    error: str = ""
    created: bool = False


@dataclass(frozen=True, slots=True)
class PermissionReview:
    """Required permissions that are missing, and add-ons that are not granted in full."""

    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


async def ensure_namespace(worker: Client, name: str, domain: Domain) -> MountNamespace:
    """Create the mount namespace if it does not exist.

    :raises ApiError: the worker could not be reached.
    """
    try:
        namespace = await worker.get(NAMESPACES, name)
    except Forbidden:
        return MountNamespace()  # the permission review reports it
    except NotFound:
        return await _create(worker, name, domain)
    return MountNamespace(f"namespace {name} is being deleted" if namespace.deleting else "")


async def _create(worker: Client, name: str, domain: Domain) -> MountNamespace:
    body = {"metadata": {"name": name, "labels": labels(domain)}}
    try:
        await worker.create(NAMESPACES, body)
    except AlreadyExists:
        return MountNamespace()
    except Forbidden:
        message = (
            f"namespace {name} does not exist in the worker, and the credential may not create it"
        )
        return MountNamespace(message)
    return MountNamespace(created=True)


async def review(worker: Client, mount_namespace: str, domain: Domain) -> PermissionReview:
    """Review the permissions of the credential in the worker.

    :raises ApiError: the worker could not be reached.
    """
    optional = {*IDENTITY.permissions(), *egress_rule(domain).permissions(mount_namespace)}
    required = [
        permission
        for permission in worker_rights(mount_namespace, (), domain).permissions()
        if permission not in optional
    ]
    # An add-on is granted if all permissions of one of its alternatives are.
    alternatives = {
        add_on: [
            set(worker_rights(mount_namespace, (add_on,), domain).permissions()) - set(required)
        ]
        for add_on in ALL_ADD_ONS
    }
    alternatives[AddOn.METRICS].append(set(metrics_rights().permissions()))
    additional = set().union(*(each for sets in alternatives.values() for each in sets)) - optional
    allowed = set(await granted(worker, [*required, *sorted(additional)]))
    missing = [permission for permission in required if permission not in allowed]
    without = [
        str(add_on)
        for add_on, sets in alternatives.items()
        if not any(permissions - optional <= allowed for permissions in sets)
    ]
    return PermissionReview(tuple(summary(missing)), tuple(without))


def summary(permissions: Iterable[Permission]) -> list[str]:
    """Describe permissions, one text per resource and namespace: `create, patch pods in team-a`."""
    verbs: dict[Permission, list[str]] = {}
    for permission in permissions:
        verbs.setdefault(permission._replace(verb=""), []).append(permission.verb)
    return [f"{', '.join(names)}{resource}" for resource, names in verbs.items()]
