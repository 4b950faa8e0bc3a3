"""Decisions of leasing: which nodes are lent, when, how much of them, and how they are reclaimed.

Pure: nothing here reads a clock, waits, or sends a request.
"""
