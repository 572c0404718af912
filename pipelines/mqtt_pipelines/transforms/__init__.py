"""Functions that transform one DataFrame into another. They do not read or write, and work for batches and streams.

Executors need only this package of `mqtt_pipelines`. It imports nothing from HookMQ.
"""
