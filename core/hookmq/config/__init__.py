"""The configuration: turns YAML into one frozen `Config`, and reports every mistake with its line and column."""
