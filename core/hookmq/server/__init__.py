"""The server around the broker: listeners, transports, the event loop, signals and the service manager."""
