"""The drivers in this package. Their client libraries are optional extras, imported only when a target is opened."""
