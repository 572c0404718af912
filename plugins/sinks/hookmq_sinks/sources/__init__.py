"""The sources included in hookmq-sinks."""
