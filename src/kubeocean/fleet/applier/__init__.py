"""Work applier: how a member turns the manifests of a Work into objects, and reports on them.

Pure, functions of the manifest, of the object in the member and of the apply strategy:

    manifests               reads manifests and prepares what is written
    three_way, merge_keys   compute the patch of a client-side apply
    server_side             tells whether a server-side apply would change something
    diff                    compares hub and member
    plan                    decides on the next write or result for one manifest
    ordering                sorts kinds: those that others depend on first
    availability            judges what was applied
    report                  builds the status of the Work
    applied_work            builds the AppliedWork, the member's record of what a Work placed
    finished_jobs           notes Jobs that have finished, so that they are not made again
    leftovers               finds what a Work placed and names no longer
    backoff                 computes when a Work is processed again
    records                 what is remembered between two passes

Reading and writing:

    objects                 carries out the steps of a plan in the member
    manifest_pass           applies all manifests of a Work
    deletion                removes or abandons the objects of a deleted Work
    stores                  caches and writes of Works and AppliedWorks
    controller              `WorkApplier`: watches Works, runs passes, writes statuses

The names exported here are what the agent of a member needs. A name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.fleet.applier.availability import extended_tracker, kubefleet_tracker
    from kubeocean.fleet.applier.backoff import Backoff
    from kubeocean.fleet.applier.controller import WorkApplier
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "availability": ("extended_tracker", "kubefleet_tracker"),
            "backoff": ("Backoff",),
            "controller": ("WorkApplier",),
        },
    )

__all__ = ["Backoff", "WorkApplier", "extended_tracker", "kubefleet_tracker"]
