"""Rollout: when the latest resource snapshots are released to each picked cluster.

`readiness` judges bindings, `plan` releases and removes them within the limits of a rolling update,
and `controller` writes. A placement whose strategy is External is left to staged update runs.
"""
