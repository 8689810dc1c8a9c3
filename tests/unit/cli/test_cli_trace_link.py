"""Where `handoff trace --open` leads."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from streams.cli.trace_link import trace_link
from streams.errors import BadSetup

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("template", "url"),
    [
        ("jaeger", f"http://localhost:16686/trace/{TRACE}"),
        ("jaeger=https://jaeger.example.org/ui/", f"https://jaeger.example.org/ui/trace/{TRACE}"),
        ("tempo", f"http://localhost:3200/api/traces/{TRACE}"),
        ("https://x.example.org/?t={trace_id}&v=1", f"https://x.example.org/?t={TRACE}&v=1"),
    ],
)
def test_a_preset_or_a_template_makes_the_url(template: str, url: str) -> None:
    assert trace_link(template, TRACE) == url


def test_grafana_is_asked_for_the_trace_in_its_own_spelling() -> None:
    url = urlsplit(trace_link("grafana=http://g:3000", TRACE))
    assert (url.netloc, url.path) == ("g:3000", "/explore")
    (panes,) = parse_qs(url.query)["panes"]
    (query,) = json.loads(panes)["trace"]["queries"]
    assert (query["queryType"], query["query"]) == ("traceql", TRACE)


@pytest.mark.parametrize(
    "template", ["", "zipkin", "https://x.example.org", "javascript:{trace_id}"]
)
def test_what_is_no_template_is_refused_with_what_is(template: str) -> None:
    with pytest.raises(BadSetup, match="jaeger, tempo, grafana"):
        trace_link(template, TRACE)
