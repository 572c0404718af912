"""Incoming messages: permission, transforms, retained messages and fan-out."""
