"""Kinds that are replicated because pods refer to them: a module for each kind, and their table.

To replicate one more kind:

1. Write its module here: a `ReplicatedKind` with the resources of sources and copies, the content
   of a copy, and the references of a pod that lead to a source. If copies of the kind refer to
   copies of another kind, a subclass of `Rules` connects the two.
2. Add the kind to `table.REPLICATED_KINDS`. The controllers, the references of pods, the division
   of work between replicas, the sweep, `repair`, `doctor` and `explain` read the table.
3. `install` cannot import the table, so it has lists of its own; a test of the table
   (`tests/unit/syncer/replication/kinds/test_table.py`) names each list that lacks the kind:
   - `roles.py`: rights to sources and copies. Run `scripts/manifests` after a change;
   - `data/computing/admission.yaml`: fields of sources that a syncer must not change, in the
     policies `-sources` and `-specs`;
   - `leave.py`, `LEFT_KINDS`: copies that `kubeocean leave` reports if they are left over.
4. If the spec of a pod names objects of the kind, replace their names by those of the copies where
   the physical pod is forged: in `pods/forge.py`, `pods/volumes.py` or `pods/env.py`.

Services, LogConfigs and service account tokens are not replicated because a pod refers to them:
each has a controller of its own in `replication`.
"""

__all__: list[str] = []
