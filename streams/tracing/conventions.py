"""Names by the OpenTelemetry semantic conventions for messaging, of one pinned version.

https://opentelemetry.io/docs/specs/semconv/messaging/ (development status): they may change with
any release, so nothing else spells them, and a unit test holds them to the published package.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "1.44.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{VERSION}"

SYSTEM: Final = "messaging.system"
KAFKA: Final = "kafka"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
OFFSET: Final = "messaging.kafka.offset"
MESSAGE_KEY: Final = "messaging.kafka.message.key"
MESSAGE_ID: Final = "messaging.message.id"
ERROR_TYPE: Final = "error.type"

#: Metrics.
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"

#: Values of `OPERATION_NAME` and `OPERATION_TYPE`.
SEND: Final = "send"
PROCESS: Final = "process"

# Ours, for what the conventions have no name for.
FLOW: Final = "handoff.flow"
STAGE: Final = "handoff.stage"
SEQ: Final = "handoff.seq"
STATUS: Final = "handoff.status"
ATTEMPTS: Final = "handoff.attempts"
#: Milliseconds between the record's timestamp and its delivery.
QUEUED_MS: Final = "handoff.queued_ms"
WORKER: Final = "handoff.worker"


def span_name(operation: str, destination: str) -> str:
    """`send mail.classify`, `process mail.classify`."""
    return f"{operation} {destination}"
