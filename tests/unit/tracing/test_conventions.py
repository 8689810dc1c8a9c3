"""Our spelling of the conventions is the published one of the pinned version."""

from __future__ import annotations

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as published_ai
from opentelemetry.semconv._incubating.attributes import messaging_attributes as published
from opentelemetry.semconv._incubating.metrics import messaging_metrics as published_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas

from streams.tracing import conventions as c


def test_the_pinned_version_is_published() -> None:
    assert c.SCHEMA_URL in {schema.value for schema in Schemas}


def test_every_name_is_the_published_one_and_none_is_ours_in_disguise() -> None:
    both = {**vars(published), **vars(published_metrics)}
    names = {v for k, v in both.items() if k.startswith("MESSAGING_")}
    used = [v for v in vars(c).values() if isinstance(v, str) and v.startswith("messaging.")]
    assert len(used) > 5
    assert not set(used) - names
    assert c.ERROR_TYPE == error_attributes.ERROR_TYPE
    types = {v.value for v in published.MessagingOperationTypeValues}
    assert {c.SEND, c.PROCESS} <= types
    ai = [v for k, v in vars(c).items() if k.startswith("GEN_AI_")]
    assert len(ai) == 5
    assert set(ai) <= {v for k, v in vars(published_ai).items() if k.startswith("GEN_AI_")}
    assert published.MessagingSystemValues.KAFKA.value == c.KAFKA
