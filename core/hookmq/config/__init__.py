"""Read the configuration from YAML into one frozen `Config`, and report every mistake with its line and column."""
