"""Settings: read from the environment once, validated whole, frozen.

The only place that reads the environment. Field names carry their units.
"""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from streams.errors import BadSetup
from streams.names import Names


class Settings(BaseSettings):
    """Everything that a process needs to know about the world outside."""

    model_config = SettingsConfigDict(
        env_prefix="HANDOFF_", frozen=True, extra="forbid", populate_by_name=True
    )

    #: `host:port,…` of the Kafka brokers.
    kafka_bootstrap_servers: str = Field(
        "localhost:9092",
        validation_alias=AliasChoices("KAFKA_BOOTSTRAP_SERVERS", "kafka_bootstrap_servers"),
    )
    #: libpq URL of the Postgres database.
    database_url: str = Field(
        "postgresql://localhost:5432/handoff",
        validation_alias=AliasChoices("DATABASE_URL", "database_url"),
    )
    #: Put before every topic, group and transactional id.
    prefix: str = Field("", pattern=r"^[a-zA-Z0-9._-]{0,60}$")
    #: Which of a stage's workers this process is (`StatefulSet` ordinal): one process per slot.
    slot: int = Field(0, ge=0, le=9999)
    #: Partitions of topics that are yet to be created.
    partitions: int = Field(4, ge=1, le=1024)
    replication_factor: int = Field(1, ge=1, le=7)
    #: How long hand-offs are kept: the replay horizon.
    retention_ms: int = Field(7 * 86_400_000, ge=60_000)
    #: Records of a stage that may be delivered and unfinished at once; the limit on its memory.
    max_in_flight_records: int = Field(16_384, ge=1)
    #: The same bound in bytes of payload.
    max_in_flight_bytes: int = Field(64 * 2**20, ge=2**20)
    #: Largest group commit.
    max_commit_records: int = Field(4_000, ge=1)
    #: Largest payload that a stage takes or hands on.
    max_payload_bytes: int = Field(900_000, ge=1_000)
    #: Bound of the offset map in commit metadata: the broker's `offset.metadata.max.bytes`.
    offset_map_max_bytes: int = Field(4_096, ge=128)
    session_timeout_ms: int = Field(6_000, ge=1_000)
    max_poll_interval_ms: int = Field(300_000, ge=10_000)
    transaction_timeout_ms: int = Field(10_000, ge=1_000)
    #: How long one commit may keep others waiting before its outcome counts as unknown.
    commit_timeout_s: float = Field(15.0, gt=0)
    #: How long a leaving partition's finished work may take to commit before it is dropped.
    revoke_timeout_s: float = Field(5.0, gt=0)
    #: How long a stopping worker waits for its running handlers.
    grace_s: float = Field(10.0, ge=0)
    #: How long the running handler of a cancelled job may go on before its task is cancelled.
    cancel_grace_s: float = Field(5.0, ge=0)
    #: Lease of an effect claim, by Postgres' clock.
    effect_lease_s: float = Field(60.0, gt=0)
    #: Bound on each statement and on waiting for a connection.
    database_timeout_s: float = Field(10.0, gt=0)
    #: A record that was started so often with the journal on, and never survived, is dead-lettered.
    #: The first two such deaths are in company, the others alone.
    max_deliveries: int = Field(3, ge=3)
    #: A worker that was not seen for so long is dead; it shows itself six times as often.
    worker_lost_s: float = Field(30.0, gt=0)
    #: For how long after the last unclean end of a worker the others journal what they start.
    journal_s: float = Field(300.0, gt=0)
    #: An event loop that does not turn for so long is hung: its process ends. 0: never.
    watchdog_s: float = Field(60.0, ge=0)
    #: Port of /livez, /readyz and /metrics; 0: none.
    health_port: int = Field(0, ge=0, le=65_535)
    health_host: str = "127.0.0.1"
    #: What shows no progress for so long makes /livez say 503.
    health_stall_s: float = Field(20.0, gt=0)
    #: Where `handoff trace --open` leads: jaeger, tempo, grafana (`jaeger=https://host` for another
    #: address), or a URL with `{trace_id}` in it.
    trace_url: str = "jaeger"
    #: For crash tests: where the process kills itself (see `streams.crashpoints`).
    crash_point: str | None = None
    log_format: str = Field("console", pattern=r"^(console|json)$")
    log_level: str = Field("info", pattern=r"^(debug|info|warning|error)$")

    @property
    def stop_s(self) -> float:
        """What a worker may take to end after SIGTERM: handlers, the last commit, closing."""
        return self.grace_s + self.commit_timeout_s + 6.0

    @property
    def names(self) -> Names:
        return Names(self.prefix)


def load_settings(**overrides: Any) -> Settings:
    """Read the environment; `overrides` win. Raises `BadSetup` that names each bad setting."""
    try:
        return Settings(**overrides)
    except ValidationError as e:
        faults = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise BadSetup(f"The settings are not valid: {faults}.") from None
