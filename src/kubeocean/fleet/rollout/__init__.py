"""Rollout: when the latest resource snapshots are released to each picked cluster.

`readiness` evaluates the conditions of bindings, `plan` chooses which bindings are updated and
deleted within the limits of a rolling update, and `controller` writes. A placement whose strategy
is External is left to staged update runs.
"""
