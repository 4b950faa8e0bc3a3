"""Comparison of both clusters, deletion of orphans, and deletion of a binding."""

__all__: list[str] = []
