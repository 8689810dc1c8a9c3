"""An OpenAI-compatible server that answers by a script, in the test process, with a record of its
own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
from aiohttp import web

from tests.support.loop_thread import LoopThread

MODEL = "stand-in"
#: What the server says that it is.
ANSWERS_AS = "stand-in-2026-11"
KEY = "sk-secret-0123456789"
#: Of one answer, good or bad.
TOKENS_IN, TOKENS_OUT = 120, 9


@dataclass(frozen=True, slots=True)
class Say:
    """One answer: an HTTP status, headers and a body. `held`: it comes when the server is told to
    `let_go`, or never."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    held: bool = False


def says(content: str | None, *, finish: str = "stop", **message: Any) -> Say:
    """A completion whose only choice has this text."""
    completion = {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": ANSWERS_AS,
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
        "usage": {
            "prompt_tokens": TOKENS_IN,
            "completion_tokens": TOKENS_OUT,
            "total_tokens": TOKENS_IN + TOKENS_OUT,
        },
    }
    return Say(body=orjson.dumps(completion))


def problem(status: int, code: str = "", message: str = "", **headers: str) -> Say:
    """An error as such servers spell it."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": code or None}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Say(status, orjson.dumps(body), named)


GOOD = says('{"label":"spam","confidence":0.9}')
MALFORMED = says('{"label":"spam",')
UNFIT = says('{"label":"important","confidence":0.9}')
REFUSED = says(None, refusal="I cannot help with that.")
CUT_OFF = says('{"label":"sp', finish="length")
BUSY = problem(429, "rate_limit_exceeded", retry_after="1")
BROKEN = problem(500, "server_error")
SLOW = Say(held=True)
HTML = Say(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came, and what was said to it."""

    job: str
    request: dict[str, Any]
    headers: dict[str, str]
    said: Say


class ModelServer:
    """A context manager; runs in a thread of its own.

    `script` is asked with the job (its trace id) and how often that has asked before.
    """

    def __init__(self, script: Callable[[str, int], Say] = lambda job, nth: GOOD) -> None:
        self.script = script
        #: In the order of arrival.
        self.asked: list[Asked] = []
        self._thread = LoopThread("model")
        self._let_go = asyncio.Event()
        self._port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        self._thread.run(self._runner.setup())
        self.up()
        return self

    def __exit__(self, *exc: object) -> None:
        self.let_go()
        self._thread.run(self._runner.cleanup())
        self._thread.end()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def settings(self, **more: str) -> dict[str, str]:
        """The environment of a worker that asks here."""
        return {
            "HANDOFF_MODEL_URL": self.url,
            "HANDOFF_MODEL_NAME": MODEL,
            "HANDOFF_MODEL_API_KEY": KEY,
            **more,
        }

    def said(self, what: Say) -> list[str]:
        """The jobs that were told so, in order."""
        return [each.job for each in self.asked if each.said is what]

    def up(self) -> None:
        """Listen, at the same port as before."""
        self._thread.run(self._listen())

    def down(self) -> None:
        """Refuse connections."""
        self._thread.run(self._site.stop())

    def let_go(self) -> None:
        """Answer to those who are held, and hold nobody any more."""
        self._thread.call(self._let_go.set)

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await self._site.start()
        assert self._runner.addresses
        self._port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.Response:
        job = request.headers["traceparent"].split("-")[1]
        nth = sum(each.job == job for each in self.asked)
        say = self.script(job, nth)
        body = json.loads(await request.read())
        self.asked.append(Asked(job, body, dict(request.headers), say))
        if say.held:
            await self._let_go.wait()
            say = GOOD
        headers = {"Content-Type": "application/json", **say.headers}
        return web.Response(status=say.status, body=say.body, headers=headers)
