"""Rate limits, quotas and bans for HookMQ's clients. The plugin is `hookmq_ratelimit.plugin`."""
