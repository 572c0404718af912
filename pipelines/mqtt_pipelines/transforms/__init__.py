"""Functions that transform one DataFrame into another. They perform no I/O, and work for both batches and streams.

This is the only package of `mqtt_pipelines` that executors need. It imports nothing from HookMQ.
"""
