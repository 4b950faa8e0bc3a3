"""Views of a fleet: its members, its placements, and the objects of one placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeocean.runtime._exports import lazy_exports

if TYPE_CHECKING:
    from kubeocean.inspect.fleet.clusters import (
        ClusterView,
        cluster_lines,
        cluster_view,
        cluster_views,
    )
    from kubeocean.inspect.fleet.placements import (
        PlacementView,
        placement_lines,
        placement_view,
        placement_views,
    )
    from kubeocean.inspect.fleet.reading import read_placements, read_tree
    from kubeocean.inspect.fleet.tree import TreeNode, placement_tree, tree_lines
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "clusters": ("ClusterView", "cluster_lines", "cluster_view", "cluster_views"),
            "placements": (
                "PlacementView",
                "placement_lines",
                "placement_view",
                "placement_views",
            ),
            "reading": ("read_placements", "read_tree"),
            "tree": ("TreeNode", "placement_tree", "tree_lines"),
        },
    )

__all__ = [
    "ClusterView",
    "PlacementView",
    "TreeNode",
    "cluster_lines",
    "cluster_view",
    "cluster_views",
    "placement_lines",
    "placement_tree",
    "placement_view",
    "placement_views",
    "read_placements",
    "read_tree",
    "tree_lines",
]
