"""The HTTP client: one for each event loop, made at the first call. The only importer of openai."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from streams.errors import BadSetup
from streams.models.answer import Completion, read_completion
from streams.models.blame import no_answer, refusal, wait_asked
from streams.models.settings import ModelSettings

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI


def load() -> None:
    """Import the client. Raises `BadSetup` where it is not installed."""
    try:
        import openai  # noqa: F401
    except ImportError as e:
        raise BadSetup(
            f"To ask a model, this worker needs {e.name}: pip install 'handoff[model]'."
        ) from None


class ModelClient:
    """Calls of one model's server. Retries, and what an answer means, are for others."""

    def __init__(self, settings: ModelSettings, prefix: str) -> None:
        self._settings, self._prefix = settings, prefix
        #: The server has answered, so settings and form of the requests are right.
        self._proven = False
        self._clients: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[AsyncOpenAI, AsyncGenerator[AsyncOpenAI, None]]
        ] = WeakKeyDictionary()

    async def complete(self, request: Mapping[str, Any], traceparent: str) -> Completion:
        """One call, at most `timeout_s` long. Raises `ModelAway` or `BadRecord`."""
        load()
        from openai import APIConnectionError, APIStatusError

        completions = (await self._client()).chat.completions.with_raw_response
        url, prefix = self._settings.url, self._prefix
        # Raised outside of the handlers: their exceptions hold what the server said.
        try:
            # The client's own time-out is for each read, so a server that trickles would have all
            # the time of the world.
            async with asyncio.timeout(self._settings.timeout_s):
                raw = await completions.create(**request, extra_headers=self._headers(traceparent))
            completion, error = read_completion(raw.content), None
        except APIStatusError as e:
            completion, error = None, self._refused(e)
        except TimeoutError:
            how = f"did not answer within {self._settings.timeout_s:g} s ({prefix}TIMEOUT_S)"
            completion, error = None, no_answer(url, prefix, how)
        except APIConnectionError as e:
            cause = type(e.__cause__ or e).__name__
            completion, error = None, no_answer(url, prefix, f"cannot be reached ({cause})")
        if error is not None:
            raise error
        if completion is None:
            how = "does not answer as an OpenAI-compatible server; its URL often ends in /v1"
            raise no_answer(url, prefix, how)
        self._proven = True
        return completion

    def _headers(self, traceparent: str) -> dict[str, Any]:
        from openai import Omit

        # What the environment holds for OpenAI itself is none of another vendor's business.
        ours = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
        if not self._settings.api_key.get_secret_value():
            ours["Authorization"] = Omit()
        return {"traceparent": traceparent, **ours}

    def _refused(self, error: APIStatusError) -> Exception:
        headers, now = error.response.headers, datetime.now(UTC)
        after_s = wait_asked(headers.get("retry-after"), headers.get("retry-after-ms"), now)
        code = error.code or error.type
        secret = self._settings.api_key.get_secret_value()
        shown = code if isinstance(code, str) and not (secret and secret in code) else None
        status = error.response.status_code
        url, prefix = self._settings.url, self._prefix
        return refusal(status, shown, url, prefix, after_s, proven=self._proven)

    async def _client(self) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            holder = self._holder()
            # No other task of this loop comes in between: the holder's first step does not wait.
            self._clients[loop] = (await anext(holder), holder)
        return self._clients[loop][0]

    async def _holder(self) -> AsyncGenerator[AsyncOpenAI, None]:
        """Keeps the client open until the loop shuts its generators down, as `asyncio.run` does."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        settings = self._settings
        key = settings.api_key.get_secret_value()
        async with AsyncOpenAI(
            base_url=settings.url,
            api_key=key or "none",
            timeout=None,
            # When, and how often, is for the stage's policy to say.
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(follow_redirects=False),
        ) as client:
            yield client
