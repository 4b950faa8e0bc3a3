"""AppliedWork: the member's record of the objects that a Work placed.

An AppliedWork has the name of its Work, owns all objects that were placed for the Work, and lists
them. An object is listed (without a UID) before it is written for the first time, so that after a
crash every written object is known. An object stays listed while a manifest names it, or until it
was removed.

The annotation `kubeocean.io/finished-jobs` of an AppliedWork belongs to `finished_jobs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeocean.api.fleet.limits import WORK_BYTES
from kubeocean.api.fleet.works import APPLIED_WORKS
from kubeocean.fleet.applier.manifests import Identifier
from kubeocean.fleet.applier.report import Processed
from kubeocean.runtime.objects import Json, encode

__all__ = [
    "applied_resources",
    "document",
    "listed",
    "write_ahead",
]

_JOB: Final = ("batch", "Job")
_OUTCOMES: Final = ("Complete", "Failed")
_UID_BYTES: Final = len(',"uid":""') + 36


def document(work_namespace: str, work_name: str) -> Json:
    """Return the AppliedWork to create for a Work."""
    return {
        "apiVersion": APPLIED_WORKS.api_version,
        "kind": APPLIED_WORKS.kind,
        "metadata": {"name": work_name},
        "spec": {"workName": work_name, "workNamespace": work_namespace},
    }


def listed(applied_work: Json) -> list[Json]:
    """Return the entries of an AppliedWork's `status.appliedResources`."""
    return list((applied_work.get("status") or {}).get("appliedResources") or ())


def write_ahead(
    entries: list[Json], manifests: Iterable[Identifier]
) -> tuple[list[Json], frozenset[Identifier]]:
    """Return `entries` with new ones for manifests that are not listed yet.

    The AppliedWork must not grow too large for its API server: the identifiers of manifests for
    which there is no room are returned, too; their objects must not be written.
    """
    known = {Identifier.from_json(entry).object for entry in entries}
    room = WORK_BYTES - sum(_size(entry) for entry in entries)
    ahead, unlisted = list(entries), []
    for identifier in manifests:
        if identifier.object in known:
            continue
        entry = identifier.to_json()
        room -= _size(entry)
        if room < 0:
            unlisted.append(identifier)
        else:
            ahead.append(entry)
    return ahead, frozenset(unlisted)


def _size(entry: Json) -> int:
    """Return the encoded size of an entry in bytes, including its future UID."""
    return len(encode(entry)) + 1 + (0 if "uid" in entry else _UID_BYTES)


def applied_resources(
    entries: list[Json], processed: Iterable[Processed], unremoved: Iterable[Identifier]
) -> list[Json]:
    """Return the entries of an AppliedWork after a pass.

    These are the entries of all manifests that were listed or applied, and of left-overs that
    could not be removed.
    """
    old = {Identifier.from_json(entry).object: entry for entry in entries}
    resources = []
    for each in processed:
        before = old.get(each.identifier.object)
        if not each.identifier.resource:
            # The member does not serve the kind any more, or never did.
            resources += [] if before is None else [before]
            continue
        live = each.result.live if each.result.reason.is_applied else None
        uid = (before or {}).get("uid") if live is None else live["metadata"]["uid"]
        if before is None and live is None:
            continue
        resources.append({**each.identifier.to_json(), **({"uid": uid} if uid else {})})
    return resources + [old[each.object] for each in unremoved if each.object in old]
