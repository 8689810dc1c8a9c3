"""Settings of one model, from the environment: `HANDOFF_MODEL_NAME`, `HANDOFF_MODEL_URL` and so on;
a flow with several models gives each a prefix of its own."""

from __future__ import annotations

import os
from typing import Final

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from streams.errors import BadSetup

PREFIX: Final = "HANDOFF_MODEL_"

#: Below the five minutes that a stage gives a run unless it says otherwise.
_MAX_TIMEOUT_S: Final = 270.0
#: No user, password, query or fragment: the URL is named in messages.
_URL: Final = r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$"


class ModelSettings(BaseSettings):
    """Which model, where, and how long and how much it may say."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    #: As the server calls it.
    name: str = Field(min_length=1, max_length=200)
    #: Base URL of an OpenAI-compatible server; `/chat/completions` is put behind it.
    url: str = Field("https://api.openai.com/v1", pattern=_URL)
    #: Sent as a bearer token, and shown to nobody; empty for a server that wants none.
    api_key: SecretStr = SecretStr("")
    #: Of one call, from the connection to the last byte.
    timeout_s: float = Field(30.0, gt=0, le=_MAX_TIMEOUT_S)
    #: Longer answers are cut off by the server, and not accepted.
    max_output_tokens: int = Field(2_000, ge=1)

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, key: SecretStr) -> SecretStr:
        # What does not would be quoted by the HTTP client's error.
        text = key.get_secret_value()
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("it holds a blank, a line break or a sign that is no ASCII")
        return key


def is_named(prefix: str = PREFIX) -> bool:
    """Whether the environment names a model: without that nothing is to be asked of one."""
    return bool(os.environ.get(f"{prefix}NAME", "").strip())


def model_settings(prefix: str = PREFIX) -> ModelSettings:
    """Read the environment. Raises `BadSetup` that names the bad setting, and not its value."""
    try:
        return ModelSettings(_env_prefix=prefix)
    except ValidationError as e:
        faults = "; ".join(
            f"{prefix}{str(x['loc'][0]).upper()}: {x['msg']}"
            for x in e.errors(include_input=False, include_url=False)
        )
        raise BadSetup(f"The model's settings are not valid: {faults}.") from None
