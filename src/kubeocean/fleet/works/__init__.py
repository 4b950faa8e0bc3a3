"""Works: the manifests that each picked cluster gets, and the progress that its member reports.

`plan` decides which Works a binding needs, `documents` makes them, `report` turns their status into
the status of the binding, and `controller` reads and writes.
"""
