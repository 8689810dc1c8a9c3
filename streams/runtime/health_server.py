"""Serves `/livez`, `/readyz` and `/metrics`; asks after Kafka and Postgres, in its own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NoAnswer
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

import orjson
import structlog

from streams.config import Settings
from streams.errors import BadSetup, HandoffError
from streams.kafka import cluster_answers, reading_consumer
from streams.postgres import Pool, pooled
from streams.runtime.health import Dependency, Health, Report, Vitals
from streams.tracing.metrics import CONTENT_TYPE, Metrics, prometheus_text

log = structlog.get_logger(__name__)

#: A probe that comes to nothing must not keep a thread.
_REQUEST_TIMEOUT_S: Final = 5.0
_LONGEST_ASK_S: Final = 3.0
_LONGEST_PAUSE_S: Final = 2.0


class HealthServer:
    """Runs from `start` to `stop`; both may be called in the event loop."""

    def __init__(self, vitals: Vitals, settings: Settings, pool: Pool, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._health = Health(vitals, settings.health_stall_s)
        self._inquiry = Inquiry(vitals, settings, pool)
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Listen. Raises `BadSetup` when the address is taken or is not ours."""
        where = (self._settings.health_host, self._settings.health_port)
        answers = {"/livez": self._health.live, "/readyz": self._health.ready}
        try:
            self._server = _Server(where, _handler(answers, self._metrics))
        except OSError as e:
            raise BadSetup(
                f"The health of this worker cannot be served at {where[0]}:{where[1]}: "
                f"{e.strerror or e}. Choose another HANDOFF_HEALTH_PORT or HANDOFF_HEALTH_HOST; "
                "each worker on a machine needs a port of its own."
            ) from e
        Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        self._inquiry.start()
        log.info("health", address=f"http://{where[0]}:{self.port}", paths=[*answers, "/metrics"])

    def stop(self) -> None:
        self._inquiry.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class Inquiry:
    """Asks Kafka and Postgres, over and over, and writes down whether they answer.

    Often enough that an outage is known well before it looks like a thread that hangs.
    """

    def __init__(self, vitals: Vitals, settings: Settings, pool: Pool) -> None:
        self._settings, self._pool = settings, pool
        self._vitals = vitals
        self._ask_s = min(_LONGEST_ASK_S, settings.health_stall_s / 3)
        self._pause_s = min(_LONGEST_PAUSE_S, settings.health_stall_s / 6)
        self._ended = Event()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        postgres = partial(self._ask_postgres, loop)
        for name, ask in (("kafka", self._asker_of_kafka()), ("postgres", postgres)):
            Thread(target=self._run, args=(ask,), name=f"ask {name}", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self, ask: Callable[[], None]) -> None:
        while not self._ended.is_set():
            ask()
            self._ended.wait(self._pause_s)

    def _asker_of_kafka(self) -> Callable[[], None]:
        # It joins no group.
        client = reading_consumer(self._settings, self._settings.names.projector_group)

        def ask() -> None:
            _write(self._vitals.kafka, lambda: cluster_answers(self._settings, client, self._ask_s))

        return ask

    def _ask_postgres(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._select(), loop)

        def wait() -> None:
            asked.result(self._ask_s * 2)

        try:
            _write(self._vitals.postgres, wait)
        except (NoAnswer, CancelledError):
            # The event loop stands, which is told elsewhere; of Postgres nothing new is known.
            asked.cancel()

    async def _select(self) -> None:
        async with pooled(self._pool, self._settings, deadline_s=self._ask_s) as conn:
            await conn.execute(b"SELECT 1")


def _write(dependency: Dependency, ask: Callable[[], None]) -> None:
    try:
        ask()
    except HandoffError as e:
        dependency.why = e.message
        dependency.away_at = monotonic()
    else:
        dependency.why = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("health_request_failed", client=client_address, exc_info=True)


def _handler(
    answers: dict[str, Callable[[], Report]], metrics: Metrics
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                text = prometheus_text(metrics.collect()).encode()
                self._answer(HTTPStatus.OK, CONTENT_TYPE, text)
            elif (judge := answers.get(path)) is not None:
                report = judge()
                status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
                body = orjson.dumps(report.json(), option=orjson.OPT_APPEND_NEWLINE)
                self._answer(status, "application/json", body)
            else:
                there = "There are /livez, /readyz and /metrics."
                self.send_error(HTTPStatus.NOT_FOUND, explain=there)

        def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Probes come every few seconds."""

    return Handler
