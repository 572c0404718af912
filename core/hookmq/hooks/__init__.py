"""Hooks: their specifications and verdicts, and the chains that call them.

pluggy finds implementations and matches them with `specs`. At each load or reload, `registry` and `chain` turn the
implementations into tuples of functions, in configuration order. `call` runs these tuples. An unused hook is an empty
tuple, so it costs only one check.
"""
