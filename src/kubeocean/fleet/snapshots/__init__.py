"""Snapshots of placements: the policy and the selected objects of a placement at one time.

`plan` decides which snapshots are created, reused and pruned, `documents` builds snapshots,
`contents` reads the objects of a snapshot, and `controller` selects objects and writes.
"""
