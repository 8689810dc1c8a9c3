"""Logs: one line per event, keys and values, on stderr; configured once per process.

Libraries' stdlib logging goes through the same renderer, so that a log is either all JSON or all
text. Payloads and secrets are never logged; `trace_id` names the job.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import structlog

from streams.config import Settings

#: These announce their own start, stop and timers at a level that is too loud for what they say.
_CHATTY = (
    "faust",
    "mode",
    "aiohttp",
    "asyncio",
    "urllib3",
    "opentelemetry",
    "openai",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
)


def configure_logs(settings: Settings, *stamps: structlog.typing.Processor) -> None:
    """Send structlog and stdlib logging to stderr in `settings.log_format`. Safe to repeat.

    Each of `stamps` adds fields to every line.
    """
    level = getattr(logging, settings.log_level.upper())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        *stamps,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _renderer(settings),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _renderer(settings: Settings) -> Any:
    if settings.log_format == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(
        colors=_colours(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )


def _colours() -> bool:
    # The one convention that every command follows: a terminal, and no NO_COLOR.
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
