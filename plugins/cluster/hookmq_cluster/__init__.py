"""Joins several brokers to one, on NATS JetStream."""

from os.path import dirname

from hookmq.build import Build, choose_or_exit

BUILD: Build = choose_or_exit(dirname(__file__))
"""The build in use, and why it was chosen; see `hookmq.build`."""
