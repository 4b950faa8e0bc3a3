"""Selection: which objects of the hub a placement places, in which form and order.

`select` evaluates resource selectors, `rules` lists the kinds and objects that are never placed,
`cleaning` removes fields that belong to the hub, and `order` sorts the result and splits it into
snapshots of bounded size.
"""
