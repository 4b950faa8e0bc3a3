"""The syncer of one binding: virtual nodes, pods, replicated objects and clean-up between two
clusters.
"""

__all__: list[str] = []
