"""Properties: the resources, node sizes, costs and namespaces that a member cluster reports.

`collection` sums nodes and pods and lists namespaces, `azure` counts nodes per size and computes
the costs of a core and a gigabyte, `prices` holds the price list. Everything here is pure; nodes,
pods and namespaces are arguments.
"""
