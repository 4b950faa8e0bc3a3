"""The maths of lending: when, how much, by whose word, and how it comes back.

Pure: nothing here reads a clock, waits, or talks to a server.
"""
