"""Landing mode: what is in the streams as Parquet files in a folder or an object store, for clusters that cannot reach
the broker. A process of its own, ``hookmq spark export``; the broker imports nothing of this.
"""
