"""`Model.ask`: one question of a job, answered once."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from streams.context import Context
from streams.errors import EffectParked
from streams.models.answer import Answer, content_of, request
from streams.models.blame import unfit
from streams.models.client import ModelClient, load
from streams.models.settings import PREFIX, ModelSettings, model_settings

T = TypeVar("T", bound=BaseModel)


class Model:
    """A model behind an OpenAI-compatible server, by the settings that begin with `prefix`.

    Made where a module is imported; the settings are read by `load`, or by the first question.
    """

    def __init__(self, prefix: str = PREFIX, settings: ModelSettings | None = None) -> None:
        self._prefix = prefix
        self._settings = settings
        self._client: ModelClient | None = None

    def load(self) -> None:
        """For a stage's `prepare`: read the settings, import the client; nothing is called.

        Raises `BadSetup` for settings that are not valid, and for a client that is not installed.
        """
        self._ready()
        load()

    async def ask(
        self, job: Context, name: str, text: str, schema: type[T], *, instructions: str = ""
    ) -> T:
        """The model's answer to `text` as a `schema`, by way of the ledger.

        The job's answer to the question `name` is kept: a redelivery, a retry, a redrive and a
        rerun with the same effects get it again, and pay no tokens. It is bound to `text` alone:
        another text under the same name parks the job, but instructions, schema and model may
        change with any release, and a kept answer stays. After a crash between the answer and its
        settlement the model is asked again. `text` is data: say so in `instructions`, bound its
        length, and let the schema leave no room for anything but an answer.

        Counts tokens by `job.count_usage`. Raises `ModelAway` (the stage pauses), `BadAnswer` (the
        attempt counts), `BadRecord` (the server refuses the request), `EffectParked`; let all pass.
        """
        question = _Question(self._ready(), job, name, schema, instructions)
        answer = await job.effect(name, question.put, text, idempotent=True)
        if not question.answered:
            job.count_usage(request_model=question.model, response_model=answer.model, cached=True)
        try:
            return schema.model_validate_json(answer.content)
        except ValidationError as e:
            raise EffectParked(
                f"The answer that the ledger keeps for {name!r} of job {job.trace_id} is no "
                f"{schema.__name__} ({e.error_count()} faults): the schema has changed. Give the "
                "question another name, or let the schema take the old answers, then redrive.",
                kind="result_unreadable",
                key=job.effect_key(name),
            ) from None

    def _ready(self) -> tuple[ModelClient, ModelSettings, str]:
        if self._settings is None:
            self._settings = model_settings(self._prefix)
        if self._client is None:
            self._client = ModelClient(self._settings, self._prefix)
        return self._client, self._settings, self._prefix


class _Question:
    """One question in one run. `put` is the effect: the ledger knows it by name and text."""

    def __init__(
        self,
        ready: tuple[ModelClient, ModelSettings, str],
        job: Context,
        name: str,
        schema: type[BaseModel],
        instructions: str,
    ) -> None:
        self._client, self._settings, self._prefix = ready
        self._job, self._name, self._schema = job, name, schema
        self._instructions = instructions
        self.model = self._settings.name
        #: Whether the server answered in this run; else an answer is the ledger's.
        self.answered = False

    async def put(self, text: str, *, idempotency_key: str) -> Answer:
        settings, name = self._settings, self._name
        asked = request(
            self.model, self._instructions, text, self._schema, settings.max_output_tokens
        )
        completion = await self._client.complete(asked, self._job.traceparent)
        self.answered = True
        # Before the answer is looked at: a bad one was paid for, too.
        self._job.count_usage(
            request_model=self.model,
            response_model=completion.model,
            input_tokens=completion.input_tokens,
            output_tokens=completion.output_tokens,
        )
        content = content_of(completion, self.model, name, self._prefix)
        try:
            self._schema.model_validate_json(content)
        except ValidationError as e:
            fault = unfit(self.model, name, self._schema.__name__, e)
        else:
            return Answer(
                content=content,
                model=completion.model,
                input_tokens=completion.input_tokens,
                output_tokens=completion.output_tokens,
            )
        raise fault
