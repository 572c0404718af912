"""Add an HTTP route, a metric and a command: a plugin that registers."""
