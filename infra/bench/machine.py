"""What the figures were taken on: machine and versions, for the JSON report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import confluent_kafka
import psycopg

_PACKAGES: Final = (
    "handoff",
    "confluent-kafka",
    "faust-streaming",
    "aiokafka",
    "pydantic",
    "orjson",
    "psycopg",
    "uvloop",
)


def machine() -> dict[str, str | int | None]:
    """Processor, cores and operating system."""
    return {"system": platform.platform(), "cores": os.cpu_count(), "processor": _processor()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    return next(names, platform.processor())


def versions(database_url: str) -> dict[str, str | None]:
    """Versions of all that takes part; None for a package that is not installed."""
    with psycopg.connect(database_url) as conn:
        row = conn.execute("SHOW server_version").fetchone()
    return {
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "postgres": str(row[0]) if row else None,
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
