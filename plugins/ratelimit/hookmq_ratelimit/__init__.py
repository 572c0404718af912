"""Rate limits, quotas and bans for HookMQ clients. The plugin is in `hookmq_ratelimit.plugin`."""
