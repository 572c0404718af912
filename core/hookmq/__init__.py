"""HookMQ: a plugin-driven MQTT broker framework."""

from os.path import dirname

from hookmq.build import Build, choose_or_exit

BUILD: Build = choose_or_exit(dirname(__file__))
"""The build in use, and why it was chosen; see `hookmq.build`."""
