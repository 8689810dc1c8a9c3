"""Choose the demo's sample mail from the corpus: short, in whole threads, nothing explicit.

    python -m agents.training.sample --data mail.jsonl.gz

Spam and ham are taken in turn, the shortest first, a thread as a whole, until the file is full.
`group` and `bytes` are left out. `label` and `held_out` stay for people and reports: `Mail` has no
such fields, so no stage sees them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.topics import topic_of
from agents.training.corpus import HELD_OUT, Row, folds, read, write
from schemas.mail import Topic

SAMPLE = Path(__file__).parents[2] / "infra" / "demo" / "mail.jsonl.gz"
MAX_BYTES = 1_000_000
MAX_BODY_CHARS = 3_000
MIN_BODY_CHARS = 40
#: Text in other scripts is left out: it could not be looked over.
MIN_ASCII = 0.95
#: What nobody wants on a screen in a demo: beginnings of words; a full stop ends a word.
UNWANTED_WORDS = """
adult affair al-qa ams. anal. aphrodisiac arous arse ass. asshole bang. bastard bedroom behead
bestial bitch bollock bondage boob bra. breast butt cannabis cialis cock. cocks companion
companionship condom crap. cum. cunt d-bol damn dating dick. dirty donya ejacul enlarg erect
erotic escort fag faggot fetish fist freundin fuck gay. genital gigolo girl grlygrl hammer
hardcore hentai holocaust hooker horny impoten incest inch. intercourse intimate kinky knicker
knickers lesbian libido lingerie lolita lookink lover. lust marijuana masturbat mistress murder
naked natalie naughty nazi nigger nude opposite orgasm orgy paedophil paige panties paysite
pedophil penis perv pheromone piss porn potency prostitut pussy rape rencontre romance satisfy
seduc semen sex shit singles sizzling slave slut smoking spank sperm squirt steroid stoned
strip-tease stripper striptease suck suicide swinger swinging teen terroris thigh thong tits
topless turd uncensored undress upskirt vagina viagra virgin wank webcam whore xxx
"""
UNWANTED_PHRASES = (
    "attract women",
    "bin laden",
    "call me?",
    "drug test",
    "inches longer",
    "love enhanc",
    "longer i can",
    "meet men",
    "meet people",
    "meet women",
    "men & women",
    "real man",
    "remeber me",
    "remember me",
    "tonight?",
    "v*agra",
    "friendly and discreet",
    "your wife",
)
_BEGINNINGS = "|".join(re.escape(w).replace(r"\.", r"\b") for w in UNWANTED_WORDS.split())
_WORDS = re.compile(rf"\b(?:{_BEGINNINGS})")
#: "s e x" and "S*E*X": letters that are held apart to slip through filters.
_APART = re.compile(r"\b(?:[a-z][^a-z\n]{1,2}){2,}[a-z]\b")
_NO_LETTER = re.compile(r"[^a-z]")
FIELDS = ("id", "list", "date", "subject", "body", "html", "thread", "label")


def is_presentable(row: Row) -> bool:
    """Short enough, legible, and nothing explicit by words, phrases or topic."""
    text = f"{row['subject']}\n{row['body']}".lower()
    joined = _APART.sub(lambda match: _NO_LETTER.sub("", match.group()), text)
    return (
        MIN_BODY_CHARS <= len(row["body"]) <= MAX_BODY_CHARS
        and sum(map(str.isascii, text)) >= MIN_ASCII * len(text)
        and "�" not in text
        and _WORDS.search(text) is None
        and _WORDS.search(joined) is None
        and not any(phrase in text for phrase in UNWANTED_PHRASES)
        and topic_of(row["subject"], row["body"]) is not Topic.ADULT
    )


def threads_of(rows: Sequence[Row], label: str) -> list[list[Row]]:
    """Presentable mails of one label by thread, threads of shorter mails first."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["label"] == label:
            found[row["thread"]].append(row)
    whole = [thread for thread in found.values() if all(map(is_presentable, thread))]
    return sorted(whole, key=lambda t: (sum(len(r["body"]) for r in t) / len(t), t[0]["id"]))


def in_turn(spam: list[list[Row]], ham: list[list[Row]]) -> Iterator[list[Row]]:
    """Threads such that there are as many mails of both labels at any point, while both last."""
    taken = {"spam": 0, "ham": 0}
    queues = {"spam": iter(spam), "ham": iter(ham)}
    while queues:
        label = min(queues, key=taken.__getitem__)
        thread = next(queues[label], None)
        if thread is None:
            del queues[label]
            continue
        taken[label] += len(thread)
        yield thread


def choose(rows: Sequence[Row]) -> list[Row]:
    """As many threads, in turn, as fit; a copy of an earlier mail is left out."""
    held_out = {r["id"]: f == HELD_OUT for r, f in zip(rows, folds(rows), strict=True)}
    chosen: list[Row] = []
    seen: set[str] = set()
    for thread in in_turn(threads_of(rows, "spam"), threads_of(rows, "ham")):
        for row in thread:
            if row["body"] not in seen:
                seen.add(row["body"])
                kept = {name: row[name] for name in FIELDS}
                chosen.append({**kept, "held_out": held_out[row["id"]]})
    return chosen


def fit(chosen: list[Row], path: Path) -> list[Row]:
    """Write the longest beginning of `chosen` that stays under `MAX_BYTES`, sorted by date."""
    low, high = 0, len(chosen)
    while low < high:
        middle = (low + high + 1) // 2
        write(path, by_date(chosen[:middle]))
        low, high = (middle, high) if path.stat().st_size <= MAX_BYTES else (low, middle - 1)
    kept = by_date(chosen[:low])
    write(path, kept)
    return kept


def by_date(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["date"] or "", row["id"]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="agents.training.sample", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="labelled corpus, .jsonl.gz")
    parser.add_argument("--out", type=Path, default=SAMPLE)
    args = parser.parse_args(argv)
    kept = fit(choose(read(args.data)), args.out)
    spam = sum(row["label"] == "spam" for row in kept)
    print(
        f"{len(kept)} mails ({spam} spam, {len(kept) - spam} ham, "
        f"{sum(row['held_out'] for row in kept)} of the held-out tenth), "
        f"{args.out.stat().st_size} bytes in {args.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
