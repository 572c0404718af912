"""Hooks: their specifications, verdicts, compiled chains and how they are run.

pluggy is the registry: it finds implementations and pairs them with `specs`. `chains` folds them once per (re)load into
tuples of plain functions in the order of the configuration, and `run` calls those: a hook that nobody implements is an
empty tuple and costs one test.
"""
