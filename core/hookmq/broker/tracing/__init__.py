"""Traces of clients and messages. A client or chain that is not traced does not use this package."""
