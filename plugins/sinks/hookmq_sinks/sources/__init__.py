"""The sources that are part of hookmq-sinks."""
