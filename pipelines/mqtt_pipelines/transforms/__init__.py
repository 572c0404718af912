"""Functions that transform a DataFrame to a DataFrame. They do not read or write, and work for batches and streams.

Executors need only this package of `mqtt_pipelines`. It imports nothing from HookMQ.
"""
