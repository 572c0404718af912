"""Export streams as Parquet files for clusters that cannot reach the broker. The target is a folder or an object store.

The export runs in a separate process, ``hookmq spark export``. The broker imports nothing from this package.
"""
