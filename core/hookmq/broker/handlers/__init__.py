"""Handlers for each type of packet that a client sends."""
