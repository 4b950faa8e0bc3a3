"""The read model: both sides of every binding, read once, as people and programs are shown them.

Reading is thin and never writes; what is read becomes a view by pure functions, and a view becomes
a document or a page by others.
"""
