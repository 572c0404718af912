"""What happens in HookMQ reaches HTTP services: in order, signed, and kept until it arrived.

The plugin is `hookmq_webhook.plugin`.
"""
