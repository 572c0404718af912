"""Authentication and authorization of HookMQ's clients by an HTTP service. The plugin is `hookmq_auth_http.plugin`."""
