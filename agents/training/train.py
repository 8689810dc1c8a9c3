"""Train the spam model, or check the one that ships.

    python -m agents.training.train --data mail.jsonl.gz           train, write, print the figures
    python -m agents.training.train --data mail.jsonl.gz --check   only print them
    python -m agents.training.train --data mail.jsonl.gz --cross   ten folds, nothing written

Figures are of the held-out tenth, which training never sees. Exit code 1 if they miss the target.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.spam_model import BITS, WEIGHTS, SpamModel, features, load
from agents.training.corpus import FOLDS, HELD_OUT, Row, folds, read

SEED = 7
#: Inverse strength of regularisation, chosen by cross-validation on the other nine tenths.
C = 1000.0
MIN_ACCURACY = 0.975
MIN_MACRO_F1 = 0.97
MAX_MS_PER_MAIL = 1.0


@dataclass(frozen=True)
class Figures:
    mails: int
    accuracy: float
    macro_f1: float
    ms_per_mail: float

    def __str__(self) -> str:
        return (
            f"{self.mails} mails: accuracy {self.accuracy:.4f}, macro-F1 {self.macro_f1:.4f}, "
            f"{self.ms_per_mail:.3f} ms per mail"
        )

    @property
    def good(self) -> bool:
        return (
            self.accuracy >= MIN_ACCURACY
            and self.macro_f1 >= MIN_MACRO_F1
            and self.ms_per_mail <= MAX_MS_PER_MAIL
        )


def train(rows: Sequence[Row]) -> SpamModel:
    """Logistic regression on `rows`, its weights rounded to signed bytes. Deterministic."""
    sparse, linear_model = _from_extra("scipy.sparse"), _from_extra("sklearn.linear_model")
    found = [features(row["subject"], row["body"]) for row in rows]
    ends = np.cumsum([0, *(each.size for each in found)])
    values = np.concatenate([np.full(each.size, max(1, each.size) ** -0.5) for each in found])
    matrix = sparse.csr_matrix((values, np.concatenate(found), ends), shape=(len(rows), 1 << BITS))
    spam = np.array([row["label"] == "spam" for row in rows])
    regression = linear_model.LogisticRegression(C=C, solver="liblinear", random_state=SEED)
    fitted = regression.fit(matrix, spam)
    return quantise(fitted.coef_[0], float(fitted.intercept_[0]))


def _from_extra(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as e:
        raise SystemExit(
            f"Training needs {module}, which this environment lacks: pip install 'handoff[train]'."
        ) from e


def quantise(weights: NDArray[np.float64], bias: float) -> SpamModel:
    scale = float(np.abs(weights).max()) / 127
    return SpamModel(np.rint(weights / scale).astype(np.int8), scale, bias)


def evaluate(model: SpamModel, rows: Sequence[Row]) -> Figures:
    """Figures of the model as it runs in `classify`, one mail after the other.

    Time is the processor's, so that other programs on the machine do not show.
    """
    start = time.thread_time()
    said = [model.score(row["subject"], row["body"]) >= 0.5 for row in rows]
    seconds = time.thread_time() - start
    true = [row["label"] == "spam" for row in rows]
    right = sum(s == t for s, t in zip(said, true, strict=True))
    macro = (f1(said, true, of=True) + f1(said, true, of=False)) / 2
    return Figures(len(rows), right / len(rows), macro, 1000 * seconds / len(rows))


def f1(said: Sequence[bool], true: Sequence[bool], *, of: bool) -> float:
    """F1 of the class `of`; 0 where it neither occurs nor is predicted."""
    both = sum(s == of and t == of for s, t in zip(said, true, strict=True))
    return 2 * both / max(1, said.count(of) + true.count(of))


def cross_validate(rows: Sequence[Row], fold_of: Sequence[int]) -> Figures:
    """Mean figures over ten folds, each held out once."""
    each = []
    for fold in range(FOLDS):
        model = train([r for r, f in zip(rows, fold_of, strict=True) if f != fold])
        figures = evaluate(model, [r for r, f in zip(rows, fold_of, strict=True) if f == fold])
        print(f"fold {fold}: {figures}", file=sys.stderr)
        each.append(figures)
    return Figures(
        len(rows),
        sum(f.accuracy for f in each) / FOLDS,
        sum(f.macro_f1 for f in each) / FOLDS,
        sum(f.ms_per_mail for f in each) / FOLDS,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="agents.training.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="labelled corpus, .jsonl.gz")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="where the model is kept")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="evaluate the stored model only")
    group.add_argument("--cross", action="store_true", help="ten-fold cross-validation only")
    args = parser.parse_args(argv)

    rows = read(args.data)
    fold_of = folds(rows)
    if args.cross:
        figures = cross_validate(rows, fold_of)
        print(f"ten folds, {figures}")
        return 0 if figures.good else 1
    if not args.check:
        train([r for r, f in zip(rows, fold_of, strict=True) if f != HELD_OUT]).save(args.weights)
    held_out = [r for r, f in zip(rows, fold_of, strict=True) if f == HELD_OUT]
    figures = evaluate(load(args.weights), held_out)
    print(f"held out, split by thread and copies, {figures}")
    print(f"weights: {args.weights.stat().st_size} bytes")
    return 0 if figures.good else 1


if __name__ == "__main__":
    sys.exit(main())
