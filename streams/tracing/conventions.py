"""Names by the OpenTelemetry semantic conventions for messaging and models, of one pinned version.

https://opentelemetry.io/docs/specs/semconv/messaging/ and …/gen-ai/ (development status): they may
change with any release, so nothing else spells them, and a unit test holds them to the published
package.
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

#: Of the models that a handler asked.
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

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
#: Answers of models that were asked for, and those that the ledger gave.
MODEL_CALLS: Final = "handoff.model.calls"
MODEL_CACHED: Final = "handoff.model.cached"


def span_name(operation: str, destination: str) -> str:
    """`send mail.classify`, `process mail.classify`."""
    return f"{operation} {destination}"
