"""MQTT on the wire: reason codes, topics, properties, packets and the codec. No I/O, no state beyond a partial packet."""
