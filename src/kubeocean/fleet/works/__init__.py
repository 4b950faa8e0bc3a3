"""Works: the manifests for each picked cluster, and the progress that its member agent reports.

`plan` decides which Works a binding needs, `documents` builds Works, `report` turns their status
into the status of the binding, and `controller` reads and writes.
"""
