"""The language of a text, by the model inside py3langid's wheel."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any, Final

#: ISO 639-2 for "undetermined".
UNKNOWN: Final = "und"
#: The work per mail grows with the text, the certainty hardly: this much is read.
READ_CHARS: Final = 400
_MIN_LETTERS: Final = 20
_MIN_CONFIDENCE: Final = 0.5
# Addresses, tags and quote marks are the same in every language.
_NOISE = re.compile(r"https?://\S+|\S+@\S+|<[^>]{0,200}>|^[>\s]+|[^\w\s'.,!?-]+", re.MULTILINE)


@cache
def _identifier() -> Any:
    # Imported here: only a worker that runs `enrich` should pay about a second for the model.
    langid: Any = import_module("py3langid.langid")
    return langid.LanguageIdentifier.from_model_file(
        langid.MODEL_FILE, norm_probs=True, min_confidence=_MIN_CONFIDENCE
    )


def load() -> None:
    """Load the model, about a second, once per process; otherwise the first mail waits for it."""
    _identifier()


def language_of(text: str) -> str:
    """ISO 639 code of the text's beginning, or `UNKNOWN` if it is short or the model unsure."""
    clean = _NOISE.sub(" ", text[: 4 * READ_CHARS])[:READ_CHARS]
    if sum(map(str.isalpha, clean)) < _MIN_LETTERS:
        return UNKNOWN
    code: str = _identifier().classify(clean)[0]
    return code
