"""Work applier: how a member turns the manifests of a Work into objects, and reports on them.

Pure, functions of the manifest, of the object in the member and of the apply strategy:

    manifests               reads manifests and prepares the objects to write
    three_way, merge_keys   compute the patch of a client-side apply
    server_side             decides whether a server-side apply would change something
    diff                    compares hub and member
    plan                    decides on the next write or result for one manifest
    ordering                sorts kinds: kinds that other kinds depend on come first
    availability            decides whether an applied object is available
    expressions             compiles and evaluates conditions that users write
    report                  builds the status of the Work
    applied_work            builds the AppliedWork, the member's record of the objects of a Work
    finished_jobs           records Jobs that have finished, so that they are not created again
    leftovers               finds objects that a Work placed and no longer names
    records                 the state that the applier keeps between two passes, and their delay

Reading and writing:

    objects                 carries out the steps of a plan in the member
    manifest_pass           applies all manifests of a Work
    deletion                removes or abandons the objects of a deleted Work
    stores                  caches and writes of Works and AppliedWorks
    controller              `WorkApplier`: watches Works, runs passes, writes statuses

The names exported here are those that the agent of a member uses. A name is imported at its first
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.fleet.applier.availability import extended_tracker, kubefleet_tracker
    from kubeocean.fleet.applier.controller import WorkApplier
    from kubeocean.fleet.applier.records import Backoff
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "availability": ("extended_tracker", "kubefleet_tracker"),
            "controller": ("WorkApplier",),
            "records": ("Backoff",),
        },
    )

__all__ = ["Backoff", "WorkApplier", "extended_tracker", "kubefleet_tracker"]
