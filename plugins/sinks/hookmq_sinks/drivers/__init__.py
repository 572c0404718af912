"""The drivers that belong to this package. Their client libraries are extras, and are imported only to open a target."""
