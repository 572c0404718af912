"""Outgoing messages: the session's queue, packet ids and encoding."""
