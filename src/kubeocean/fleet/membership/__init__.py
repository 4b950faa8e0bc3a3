"""Membership: the hub's objects for each member, and the status of its MemberCluster.

`forge` builds the objects, `plan` chooses the next step, `status` computes the status; these are
pure. `controller` reads and writes.
"""
