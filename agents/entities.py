"""What a mail mentions: links, addresses, amounts of money, phone numbers.

The work per mail is bounded: so much text is read, so many candidates of each kind are looked at,
and a cheap pattern finds them before a library judges them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from typing import Final, TypeVar

import phonenumbers
from price_parser import Price

from schemas.mail import MAX_ENTITIES, MAX_URL_CHARS, Entities, Money

T = TypeVar("T")

READ_CHARS: Final = 8_000
#: Candidates that a library may judge, per mail and kind.
MAX_CANDIDATES: Final = 40
#: National numbers are read as numbers of this region.
REGION: Final = "US"
_MAX_AMOUNT: Final = Decimal(10) ** 13

_URL = re.compile(rf"https?://[^\s<>\"'()\[\]{{}}|\\^`]{{3,{MAX_URL_CHARS - 8}}}", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?<![\w.+-])[a-z0-9][\w.+-]{0,63}@(?:[a-z0-9-]{1,63}\.){1,4}[a-z]{2,24}", re.I
)
_MONEY = re.compile(
    r"(?:US ?\$|[$£€¥]|\b(?:USD|EUR|GBP)) ?\d[\d.,]{0,18}(?: ?(?:thousand|million|billion)\b)?"
    r"|\b\d[\d.,]{0,18} ?(?:dollars|euros?|pounds|USD|EUR|GBP)\b",
    re.IGNORECASE,
)
_PHONE = re.compile(
    r"\+\d[\d ().-]{6,18}\d|(?<![\w.+-])(?:1[ .-])?\(?\d{3}\)?[ .-] ?\d{3}[ .-]\d{4}(?![\w-])"
)
_TIMES: Final = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
#: Signs for the currencies that are written out as words behind the amount.
_SIGNS: Final = {"dollars": "$", "euro": "€", "euros": "€", "pounds": "£"}


def entities_in(text: str) -> Entities:
    """What the beginning of `text` mentions; `schemas.mail.Entities` tells order and count."""
    text = text[:READ_CHARS]
    return Entities(
        urls=_first(_tidy(m.group()) for m in _URL.finditer(text)),
        addresses=_first(m.group().lower() for m in _ADDRESS.finditer(text)),
        money=_first(_amounts(text)),
        phones=_first(_phones(text)),
    )


def _first(found: Iterable[T]) -> tuple[T, ...]:
    return tuple(islice(dict.fromkeys(found), MAX_ENTITIES))


def _tidy(url: str) -> str:
    """Punctuation at the end belongs to the sentence around the link."""
    return url.rstrip(".,;:!?*_")


def _amounts(text: str) -> Iterable[Money]:
    for match in islice(_MONEY.finditer(text), MAX_CANDIDATES):
        said = match.group().rstrip(".,")
        price = Price.fromstring(said)
        word = said.rsplit(maxsplit=1)[-1].lower()
        currency = _SIGNS.get(word, price.currency)
        # "$1,234,56" has no amount; "$0.00001" is a fraction that no price has.
        if price.amount is None or not currency or price.amount != round(price.amount, 4):
            continue
        amount = price.amount * _TIMES.get(word, 1)
        if amount < _MAX_AMOUNT:
            yield Money(amount=amount, currency=currency)


def _phones(text: str) -> Iterable[str]:
    for match in islice(_PHONE.finditer(text), MAX_CANDIDATES):
        try:
            number = phonenumbers.parse(match.group(), REGION)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(number):
            yield phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
