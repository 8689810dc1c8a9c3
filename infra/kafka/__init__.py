"""Apache Kafka for development and tests: fetched with Maven, run by our own code."""

from infra.kafka.broker import Kafka

__all__ = ["Kafka"]
