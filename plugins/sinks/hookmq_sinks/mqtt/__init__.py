"""The MQTT client that the bridge's driver and source share."""
