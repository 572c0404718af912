"""Traces of clients and messages. Clients and chains that are not traced do not use this package."""
