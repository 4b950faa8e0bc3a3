"""Requests as API servers send them to webhooks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubeocean.fleet.admission.reviews import AdmissionRequest, Operation, UserInfo
from kubeocean.runtime.objects import GroupVersionKind, Json

__all__ = ["request"]


def request(
    kind: str,
    operation: str = "CREATE",
    *,
    new: Json | None = None,
    old: Json | None = None,
    group: str = "",
    version: str = "v1",
    name: str = "x",
    namespace: str = "",
    user: str = "u",
    groups: Sequence[str] = (),
    sub: str = "",
) -> AdmissionRequest:
    """Return a request of a user about an object."""
    return AdmissionRequest(
        uid="1",
        kind=GroupVersionKind(group, version, kind),
        operation=Operation(operation),
        name=name,
        namespace=namespace,
        user_info=UserInfo(user, tuple(groups)),
        sub_resource=sub,
        object=msgspec.Raw(msgspec.json.encode(new)),
        old_object=msgspec.Raw(msgspec.json.encode(old)),
    )
