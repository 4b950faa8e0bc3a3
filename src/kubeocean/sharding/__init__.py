"""Sharding: every replica works, and never two on one key.

Usable by any controller. A key belongs to a slot for ever; who has the slot stands in one table.

Nothing is imported here: take what you need from its module.
"""

__all__: list[str] = []
