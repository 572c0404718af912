"""The client side of MQTT: what the bridge's driver and source share."""
