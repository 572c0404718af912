"""Authenticate and authorize MQTT clients with an HTTP service. The plugin is in `hookmq_auth_http.plugin`."""
