"""DataFrame in, DataFrame out: no reading, no writing, the same for batches and streams.

This package is what executors need of `mqtt_pipelines`, if they need anything: it imports nothing of HookMQ.
"""
