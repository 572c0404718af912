"""The configuration: YAML in, one frozen `Config` out, every mistake with its line and column."""
