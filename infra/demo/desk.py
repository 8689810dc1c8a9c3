"""The desk: a small HTTP service that files tickets and replies, once per `Idempotency-Key`.

    python -m infra.demo.desk --port 8025 --record desk.jsonl

    POST /tickets, /replies   {"job": …, "kind": "ticket"|"reply", …}   -> 201 {"number": …}
    GET  /stats               calls, effects, replays, doubles …
    GET  /record[?job=ID]     all effects, or one job's, a JSON line each
    GET  /health

After draft-ietf-httpapi-idempotency-key-header: no key 400; the same key and body again gives the
stored answer and no effect; another body 422; a first call that is still running 409. Effects carry
job and kind, so that a double shows even under two keys.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from infra.demo.book import Book, Effect, Result, fingerprint

KINDS: Final = {"tickets": "ticket", "replies": "reply"}
MAX_BODY_BYTES: Final = 2**20
MAX_KEY_CHARS: Final = 300
_JSON = "application/json"
#: How long a stopping desk waits for calls that are still running.
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Faults on purpose: each call waits `delay_ms`; the share `fail_rate` is answered 503.

    Half of the failed calls fail before the effect, half after it; `seed` fixes the draw.
    """

    delay_ms: float = 0.0
    fail_rate: float = 0.0
    seed: int = 0


class Desk:
    """The service, to be run in this process or by `main`.

    desk = Desk(record=path)
    url = await desk.start(port=0)
    …
    await desk.stop()
    """

    def __init__(self, record: Path | None = None, trouble: Trouble | None = None) -> None:
        self.book = Book(record)
        self._trouble = trouble or Trouble()
        self._draw = random.Random(self._trouble.seed)  # noqa: S311 - faults, not secrets
        self._running: set[str] = set()
        self._runner: web.AppRunner | None = None

    def stats(self) -> dict[str, int]:
        """See `Book.stats`."""
        return self.book.stats()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; returns the URL. Port 0 takes a free one."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/{path:tickets|replies}", self._file)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/record", self._record)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound = self._runner.addresses[0][1]
        return f"http://{host}:{bound}"

    async def stop(self) -> None:
        """Stop listening, give running calls five seconds, close the record."""
        if self._runner is not None:
            await self._runner.cleanup()
        self.book.close()

    async def _file(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        try:
            key = parse_key(request.headers.get("Idempotency-Key"))
            body = await request.read()
            job = parse_job(body, KINDS[path])
        except ValueError as e:
            return _problem(400, str(e))
        if key in self._running:
            self.book.note(key, Result.CONFLICT)
            return _problem(409, f"A call with key {key} is still running.")
        self._running.add(key)
        try:
            return await self._once(key, job, KINDS[path], fingerprint(path, body))
        finally:
            self._running.discard(key)

    async def _once(self, key: str, job: str, kind: str, print_: str) -> web.Response:
        """One call with this key at a time."""
        if self._trouble.delay_ms:
            await asyncio.sleep(self._trouble.delay_ms / 1000)
        known = self.book.effect_of(key)
        if known is not None and known.fingerprint != print_:
            self.book.note(key, Result.MISMATCH)
            return _problem(422, f"Key {key} was used with another body before.")
        # One draw per call, and its lower half is for failures behind the effect.
        drawn, rate = self._draw.random(), self._trouble.fail_rate
        if rate / 2 <= drawn < rate:
            self.book.note(key, Result.FAILED_BEFORE)
            return _problem(503, "Failed on purpose, nothing was done.")
        effect = known or self.book.do(key, job, kind, print_)
        if drawn < rate / 2:
            self.book.note(key, Result.FAILED_AFTER)
            return _problem(503, "Failed on purpose, perhaps after the effect.")
        self.book.note(key, Result.REPLAY if known else Result.EFFECT)
        return web.Response(status=201, body=orjson.dumps(_answer(effect)), content_type=_JSON)

    async def _stats(self, request: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(self.stats()), content_type=_JSON)

    async def _record(self, request: web.Request) -> web.Response:
        job = request.query.get("job")
        effects = self.book.all_effects() if job is None else self.book.effects_of(job)
        lines = b"".join(orjson.dumps(effect) + b"\n" for effect in effects)
        return web.Response(body=lines, content_type="application/x-ndjson")

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")


def parse_key(header: str | None) -> str:
    """The key out of a structured-field string, `"…"`; a bare value is taken as it is.

    Raises `ValueError` with a sentence if there is none, or one that is too long.
    """
    key = (header or "").strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not key:
        raise ValueError("The header Idempotency-Key is missing; each call needs one of its own.")
    if len(key) > MAX_KEY_CHARS:
        raise ValueError(f"The Idempotency-Key is longer than {MAX_KEY_CHARS} characters.")
    return key


def parse_job(body: bytes, kind: str) -> str:
    """The job that a body names. Raises `ValueError` with a sentence for a body that is no good."""
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise ValueError(f"The body is not JSON: {e}.") from None
    if not isinstance(said, dict) or not isinstance(said.get("job"), str) or not said["job"]:
        raise ValueError("The body must be an object that names its `job`.")
    if said.get("kind") != kind:
        raise ValueError(f"The body's `kind` must be {kind} here.")
    job: str = said["job"]
    return job


def _answer(effect: Effect) -> dict[str, str]:
    return {"number": effect.number, "kind": effect.kind, "job": effect.job}


def _problem(status: int, detail: str) -> web.Response:
    """An error after RFC 9457."""
    body = orjson.dumps({"status": status, "detail": detail})
    return web.Response(status=status, body=body, content_type="application/problem+json")


async def _serve(desk: Desk, host: str, port: int) -> None:
    url = await desk.start(host, port)
    print(f"The desk listens at {url}.", flush=True)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    try:
        await told.wait()
    finally:
        await desk.stop()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="infra.demo.desk", description="A desk that files tickets and replies, once per key."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8025, help="0 takes a free one")
    parser.add_argument("--record", type=Path, help="file of all calls and effects")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each call takes this long")
    parser.add_argument("--fail-rate", type=float, default=0.0, help="share of calls answered 503")
    parser.add_argument("--seed", type=int, default=0, help="of the failures")
    args = parser.parse_args(argv)
    try:
        desk = Desk(args.record, Trouble(args.delay_ms, args.fail_rate, args.seed))
        asyncio.run(_serve(desk, args.host, args.port))
    except (OSError, ValueError) as e:
        print(f"The desk cannot run: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
