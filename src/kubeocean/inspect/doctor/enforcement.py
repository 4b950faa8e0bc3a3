"""Limits of lending that a worker's API server does not enforce.

`join` and the worker chart set up the limits in the worker, where the owner controls them: an
admission policy for the credential of the binding, a PodSecurity level of the mount namespace, and
a NetworkPolicy. The credential cannot read the first two. Instead it creates pods that must be
refused, by server-side dry runs, which store nothing.

Other parts of the worker may refuse these pods as well, such as a ResourceQuota. Nothing follows
from such a refusal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kubeocean.api.group import Domain
from kubeocean.errors import BadRequest, Forbidden, Invalid, NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import PODS
from kubeocean.runtime.objects import Json, Resource, Untyped

__all__ = ["EnforcedLimit", "unenforced"]

_NETWORK_POLICIES: Final = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, Untyped
)
# The API server asks admission policies after PodSecurity.
_BY_POLICY: Final = "ValidatingAdmissionPolicy"
_CRITICAL: Final = "system-cluster-critical"
_HARMLESS: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


class EnforcedLimit(StrEnum):
    """A limit that the API server or the network of a worker should enforce."""

    ADMISSION = "admission policy"
    POD_SECURITY = "PodSecurity"
    EGRESS = "egress NetworkPolicy"


async def unenforced(worker: Client, mount: str, domain: Domain) -> tuple[EnforcedLimit, ...]:
    """Return the limits that a worker is known not to enforce, with the credential of `worker`.

    :raises ApiError: the worker did not answer.
    """
    limits = []
    if await _refusal(worker, mount, _pod(_HARMLESS, priorityClassName=_CRITICAL)) is None:
        limits.append(EnforcedLimit.ADMISSION)
    refusal = await _refusal(worker, mount, _pod({"privileged": True}, hostPID=True))
    if refusal is None or _BY_POLICY in refusal:
        limits.append(EnforcedLimit.POD_SECURITY)
    if await _lacks_egress_policy(worker, mount, domain):
        limits.append(EnforcedLimit.EGRESS)
    return tuple(limits)


async def _refusal(worker: Client, mount: str, pod: Json) -> str | None:
    """Return why the worker refuses a pod; None if the worker admits it."""
    try:
        await worker.create(PODS, pod, namespace=mount, dry_run=True)
    except (BadRequest, Forbidden, Invalid, NotFound) as error:
        return str(error)
    return None


async def _lacks_egress_policy(worker: Client, mount: str, domain: Domain) -> bool:
    """Whether the mount namespace has no NetworkPolicy of ours.

    Credentials of workers that joined with an earlier version may not read it: False.
    """
    try:
        await worker.get(_NETWORK_POLICIES, domain.egress_policy, mount)
    except NotFound as error:
        return error.is_status
    except Forbidden:
        return False
    return False


def _pod(security: Json, **spec: object) -> Json:
    resources = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "probe",
        "image": "none",
        "securityContext": security,
        "resources": {"requests": resources, "limits": resources},
    }
    return {
        "metadata": {"generateName": "kubeocean-doctor-"},
        "spec": {"automountServiceAccountToken": False, "containers": [container], **spec},
    }
