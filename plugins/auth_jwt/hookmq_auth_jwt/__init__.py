"""JSON Web Tokens as identity, permissions and limits of HookMQ's clients. The plugin is `hookmq_auth_jwt.plugin`."""
