"""The drivers of this package. Their client libraries are extras, which are imported only when a target is opened."""
