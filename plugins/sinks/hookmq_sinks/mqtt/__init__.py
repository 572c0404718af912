"""The MQTT client shared by the bridge's driver and source."""
