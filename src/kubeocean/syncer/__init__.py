"""Syncer: one worker cluster, lent to the computing cluster.

- `world`: the two clusters of a binding as the syncer sees them
- `reach`: whether the worker answers
- `forge`: what the other side's objects should look like; pure
- `bottomup`: from the worker to the computing cluster: nodes, policies, leases, reclaim
- `topdown`: from the computing cluster to the worker: pods, and what they need
- `podviews`, `podplan`: pods as both sides show them, and what is to be done about one
- `sweep`: both sides compared, for what no controller noticed
- `figures`: what it tells about itself in numbers
- `app`: all of it, wired
- `settings`, `workers`, `rotation`, `process`: the program and its access to both clusters
"""

__all__: list[str] = []
