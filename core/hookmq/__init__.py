"""HookMQ: a plugin-driven MQTT broker framework."""

from os.path import dirname

from hookmq.build import Build, choose

BUILD: Build = choose(dirname(__file__))
"""Which build runs, and why; see `hookmq.build`."""
