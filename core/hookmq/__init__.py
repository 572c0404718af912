"""HookMQ: a plugin-driven MQTT broker framework."""
