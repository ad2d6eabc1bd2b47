"""The protocols that bring frames in: Basics Station, Semtech UDP, ChirpStack MQTT."""
