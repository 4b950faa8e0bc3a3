"""Back report: the status of placed objects, written onto the objects of the hub.

`plan` decides which reported statuses are to be written, `controller` writes them.
"""
