"""Settings of the mail flow: the only place in `agents` that reads the environment."""

from __future__ import annotations

from functools import cache

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from streams import BadSetup


class DeskSettings(BaseSettings):
    """Where the desk is (`HANDOFF_DESK_URL`) and how long a call to it may take."""

    model_config = SettingsConfigDict(env_prefix="HANDOFF_DESK_", frozen=True, extra="ignore")

    url: str = Field("http://127.0.0.1:8025", pattern=r"^https?://[^\s/]+")
    timeout_s: float = Field(10.0, gt=0)


class ApprovalSettings(BaseSettings):
    """Which replies wait for a person: those to mails of more priority points than
    `HANDOFF_APPROVAL_ABOVE`, none if it is not set; and for how many seconds
    (`HANDOFF_APPROVAL_TIMEOUT_S`)."""

    model_config = SettingsConfigDict(
        env_prefix="HANDOFF_APPROVAL_", env_ignore_empty=True, frozen=True, extra="ignore"
    )

    above: int | None = None
    timeout_s: float = Field(3 * 86_400.0, gt=0)


def desk_settings() -> DeskSettings:
    """Read the environment. Raises `BadSetup` that names the bad setting."""
    try:
        return DeskSettings()
    except ValidationError as e:
        raise _bad_setup("The desk's", "HANDOFF_DESK_", e) from None


@cache
def approval_settings() -> ApprovalSettings:
    """Read the environment, once. Raises `BadSetup` that names the bad setting."""
    try:
        return ApprovalSettings()
    except ValidationError as e:
        raise _bad_setup("The approval's", "HANDOFF_APPROVAL_", e) from None


def _bad_setup(whose: str, prefix: str, error: ValidationError) -> BadSetup:
    faults = "; ".join(f"{prefix}{str(x['loc'][0]).upper()}: {x['msg']}" for x in error.errors())
    return BadSetup(f"{whose} settings are not valid: {faults}.")
