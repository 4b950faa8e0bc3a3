"""Work applier: how a member turns the manifests of a Work into objects, and reports on them.

Everything here is pure: a function of the manifest, of the object in the member and of the apply
strategy.

    manifests               reads manifests and prepares what is written
    three_way, merge_keys   compute the patch of a client-side apply
    diff                    compares hub and member
    plan                    decides on the next write or result for one manifest
    ordering                sorts kinds: those that others depend on first
    availability            judges what was applied
    report                  builds the status of the Work
    leftovers               finds what a Work placed and names no longer
    backoff                 computes when a Work is processed again
"""
