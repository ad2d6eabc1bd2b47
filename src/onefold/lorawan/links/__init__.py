"""How frames come in: Basics Station, Semtech UDP, ChirpStack MQTT."""
