"""Where a trace can be looked at: a URL from a template. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from streams.errors import BadSetup

_ID: Final = "{trace_id}"
_GRAFANA_PANES: Final = (
    '{"trace":{"datasource":"tempo","queries":[{"refId":"A","datasource":{"type":"tempo","uid":'
    '"tempo"},"queryType":"traceql","query":"TRACE"}],"range":{"from":"now-7d","to":"now"}}}'
)
#: Preset → where it listens by default, and the path of a trace there. Grafana's data source is the
#: one whose uid is `tempo`.
_PRESETS: Final = {
    "jaeger": ("http://localhost:16686", f"/trace/{_ID}"),
    "tempo": ("http://localhost:3200", f"/api/traces/{_ID}"),
    "grafana": (
        "http://localhost:3000",
        "/explore?schemaVersion=1&panes=" + quote(_GRAFANA_PANES).replace("TRACE", _ID),
    ),
}


def trace_link(template: str, trace_id: str) -> str:
    """The URL of a trace.

    `template`: a URL with `{trace_id}` in it, `jaeger`, `tempo` or `grafana`, or one of these with
    its address, `jaeger=https://traces.example.org`. Raises `BadSetup` for anything else.
    """
    preset, _, base = template.partition("=")
    if preset in _PRESETS:
        usual, path = _PRESETS[preset]
        template = (base or usual).rstrip("/") + path
    if _ID not in template or not template.startswith(("http://", "https://")):
        raise BadSetup(
            f"HANDOFF_TRACE_URL is {template!r}. Give a URL with {_ID} in it, or one of "
            f"{', '.join(_PRESETS)}, with its address if need be: jaeger=http://jaeger:16686."
        )
    return template.replace(_ID, trace_id)
