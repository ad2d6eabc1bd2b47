"""librdkafka's mock cluster: Kafka's own protocol on loopback, for any client, while this object lives.

A topic is made when it is first written to, with four partitions, each of which keeps 5 MB or 100,000 messages.
"""

from collections.abc import Iterable

from confluent_kafka import Producer

PARTITIONS = 4


class KafkaBroker:
    def __init__(self) -> None:
        self._producer = Producer(
            {"test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 5, "compression.type": "lz4"}
        )
        brokers = self._producer.list_topics(timeout=60).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def url(self, topic: str) -> str:
        return f"kafka://{self.servers}/{topic}"

    def send(self, topic: str, messages: Iterable[tuple[int, bytes | str | None, bytes | str | None]]) -> None:
        """Partition, key and value of each message; they are there when this returns."""
        for partition, key, value in messages:
            while True:
                try:
                    self._producer.produce(topic, key=key, value=value, partition=partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        assert self._producer.flush(60) == 0
