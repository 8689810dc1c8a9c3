"""Spam or ham: a linear model over hashed words and word pairs of subject and body.

Inference needs numpy only. A feature is a word, a sign or a pair of neighbours, hashed by CRC-32 to
one of 2^18 weights, so every process and every Python gives the same number. Weights are signed
bytes with one scale; `python -m agents.training.train` makes them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

#: The weights that ship.
WEIGHTS: Final = Path(__file__).with_name("spam_weights.npz")

BITS: Final = 18
_MASK: Final = (1 << BITS) - 1

#: Longer texts are read this far: it bounds the work, and training saw no more either.
SUBJECT_CHARS: Final = 300
BODY_CHARS: Final = 4_000

# Bytes, so that neither the Unicode tables of a Python release nor its hash seed matter: ASCII in
# lower case, digits read as 0 (only their count tells), and all beyond ASCII is part of a word.
_PLAIN = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ123456789", b"abcdefghijklmnopqrstuvwxyz" + 9 * b"0"
)
_TOKEN = re.compile(rb"[a-z0\x80-\xff]+|[!-/:-@\[-`{-~]")


def tokens(text: str) -> list[bytes]:
    """Words and single signs, in order."""
    return _TOKEN.findall(text.encode("utf-8", "surrogatepass").translate(_PLAIN))


def features(subject: str, body: str) -> NDArray[np.uint32]:
    """The sorted, distinct buckets of a mail; words of the subject are features of their own."""
    found: set[bytes] = set()
    for mark, text in ((b"s ", subject[:SUBJECT_CHARS]), (b"b ", body[:BODY_CHARS])):
        words = [mark + word for word in tokens(text)]
        found.update(words)
        found.update([a + b for a, b in pairwise(words)])
    hashed = np.fromiter(map(crc32, found), dtype=np.uint32, count=len(found))
    return np.unique(hashed & _MASK)


@dataclass(frozen=True)
class SpamModel:
    """logit = scale * sum(weights of the n buckets) / sqrt(n) + bias; `weights` has 2^18."""

    weights: NDArray[np.int8]
    scale: float
    bias: float

    def score(self, subject: str, body: str) -> float:
        """Probability of spam, rounded to six digits. A mail without text has the bias alone."""
        buckets = features(subject, body)
        # The sum is over integers, hence exact and the same on every machine.
        total = int(self.weights[buckets].sum(dtype=np.int64))
        logit = self.scale * total / math.sqrt(max(1, buckets.size)) + self.bias
        return round(1 / (1 + math.exp(-max(-60.0, min(60.0, logit)))), 6)

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            weights=self.weights,
            scale=np.float64(self.scale),
            bias=np.float64(self.bias),
        )


def load(path: Path) -> SpamModel:
    """Read a model that `save` wrote. Raises `ValueError` if it was made for another size."""
    with np.load(path, allow_pickle=False) as stored:
        weights = stored["weights"]
        if weights.dtype != np.int8 or weights.shape != (1 << BITS,):
            raise ValueError(
                f"{path} holds {weights.dtype} weights of shape {weights.shape}; "
                f"int8 of shape ({1 << BITS},) is needed. Train the model again."
            )
        return SpamModel(weights, float(stored["scale"]), float(stored["bias"]))


@cache
def shipped() -> SpamModel:
    """The model that ships with this package, read once per process."""
    return load(WEIGHTS)
