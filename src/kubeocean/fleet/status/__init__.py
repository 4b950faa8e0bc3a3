"""Status of placements: the state on each cluster, and over all clusters.

`clusters` builds the entry of each cluster, `placement` the conditions over all entries, `fitting`
keeps both below the size that etcd accepts, `mirror` builds the copy in a namespace that its users
can read, and `controller` writes.
"""
