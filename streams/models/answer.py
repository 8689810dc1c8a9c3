"""Requests to a chat model, and its answers, as JSON. Pure.

Only what is needed is read, since servers differ in the rest.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from schemas.usage import MAX_COUNT
from streams.models.blame import bad_answer

_CUT_OFF: Final = "length"
_FILTERED: Final = "content_filter"


class Answer(BaseModel):
    """What the ledger keeps: the accepted JSON, who gave it, and at what cost."""

    model_config = ConfigDict(frozen=True)

    content: str
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, model: BaseModel) -> Self:
        """For tests: `RecordedEffects(results={"label": Answer.of(Verdict(…))})`."""
        return cls(content=model.model_dump_json(by_alias=True))


def _number(value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return value if good else 0


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


#: Additions of a server that are not as expected must not lose an answer that is.
_Tokens = Annotated[int, BeforeValidator(_number)]
_Text = Annotated[str | None, BeforeValidator(_text)]


class _Spent(BaseModel):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0


class _Message(BaseModel):
    content: _Text = None
    refusal: _Text = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: _Text = None


class Completion(BaseModel):
    """The body of an answer."""

    choices: tuple[_Choice, ...]
    model: _Text = None
    usage: _Spent | None = None

    @property
    def input_tokens(self) -> int:
        return self.usage.prompt_tokens if self.usage else 0

    @property
    def output_tokens(self) -> int:
        return self.usage.completion_tokens if self.usage else 0


def read_completion(body: bytes) -> Completion | None:
    """None for what no OpenAI-compatible server answers."""
    try:
        return Completion.model_validate_json(body)
    except ValidationError:
        return None


def content_of(completion: Completion, model: str, name: str, prefix: str) -> str:
    """The text of the only choice. Raises `BadAnswer` if it is refused, cut off or not there."""
    choice = completion.choices[0] if completion.choices else None
    if choice is None:
        raise bad_answer(model, name, "is empty")
    if choice.message.refusal:
        raise bad_answer(model, name, "is a refusal")
    if choice.finish_reason == _FILTERED:
        raise bad_answer(model, name, "was held back by the server's content filter")
    if choice.finish_reason == _CUT_OFF:
        raise bad_answer(
            model, name, f"was cut off: it is longer than {prefix}MAX_OUTPUT_TOKENS allows"
        )
    if not choice.message.content:
        raise bad_answer(model, name, "has no text")
    return choice.message.content


def request(
    model: str, instructions: str, text: str, schema: type[BaseModel], max_output_tokens: int
) -> dict[str, Any]:
    """The arguments of a call: `text` is data, `instructions` say what to do with it."""
    messages = [{"role": "user", "content": text}]
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    return {
        "model": model,
        "messages": messages,
        "max_completion_tokens": max_output_tokens,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": schema.__name__,
                "schema": strict(schema.model_json_schema()),
                "strict": True,
            },
        },
    }


def strict(schema: Any) -> Any:
    """A JSON schema as servers take it for structured output: each object has all of its
    properties and no others, and there are no defaults."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    names = schema.get("properties")
    found = {k: strict(v) for k, v in schema.items() if k != "default"}
    if isinstance(names, dict):
        # Under `properties` the keys are names, and one of them may be `default`.
        found["properties"] = {k: strict(v) for k, v in names.items()}
        found |= {"required": list(names), "additionalProperties": False}
    return found
