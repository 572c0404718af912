"""Send HookMQ events to HTTP services, signed and in order, and retry until they arrive.

The plugin is in `hookmq_webhook.plugin`. Services that receive events use the distribution hookmq-webhook-receiver.
"""
