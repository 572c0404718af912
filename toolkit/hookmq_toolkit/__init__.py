"""Building blocks that HookMQ plugins share: access rules, a segmented log, an HTTP client and file helpers."""
