"""Take the identity, permissions and limits of MQTT clients from JSON Web Tokens. The plugin is in
`hookmq_auth_jwt.plugin`.
"""
