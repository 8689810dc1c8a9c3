"""Settings of the mail flow: the only place in `agents` that reads the environment."""

from __future__ import annotations

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from streams import BadSetup


class DeskSettings(BaseSettings):
    """Where the desk is (`HANDOFF_DESK_URL`) and how long a call to it may take."""

    model_config = SettingsConfigDict(env_prefix="HANDOFF_DESK_", frozen=True, extra="ignore")

    url: str = Field("http://127.0.0.1:8025", pattern=r"^https?://[^\s/]+")
    timeout_s: float = Field(10.0, gt=0)


def desk_settings() -> DeskSettings:
    """Read the environment. Raises `BadSetup` that names the bad setting."""
    try:
        return DeskSettings()
    except ValidationError as e:
        faults = "; ".join(
            f"HANDOFF_DESK_{str(x['loc'][0]).upper()}: {x['msg']}" for x in e.errors()
        )
        raise BadSetup(f"The desk's settings are not valid: {faults}.") from None
