"""What a mail is about, by words that people can read and change.

The topic with most of its words in the mail wins; equal counts go to the one listed first. A word
counts once however often it occurs; a phrase counts double, for it says more.
"""

from __future__ import annotations

import re
from typing import Final

from schemas.mail import Topic

#: Words that a topic needs before it is believed.
MIN_POINTS: Final = 2
_PHRASE_POINTS: Final = 2
_READ_CHARS: Final = 4_000
_WORD = re.compile(r"[a-z][a-z0-9+-]+")

WORDS: Final[dict[Topic, frozenset[str]]] = {
    topic: frozenset(words.split())
    for topic, words in (
        (
            Topic.SCAM,
            "nigeria nigerian lagos consignment beneficiary deposed barrister inheritance "
            "confidential confidentiality foreigner remittance transaction utmost sincerely fund "
            "attorney widow kin trunk deceased assistance foreign lottery winner prize",
        ),
        (
            Topic.ADULT,
            "adult adults sex sexy sexual porn xxx nude teen teens webcam erotic singles hardcore "
            "lust dating naked girls",
        ),
        (
            Topic.HEALTH,
            "viagra pharmacy prescription pills weight diet hormone hgh medical doctor health "
            "aging fat herbal supplement supplements medication medications wrinkles hair growth "
            "vitamin physician",
        ),
        (
            Topic.FINANCE,
            "mortgage loan loans refinance lender lenders debt debts rates credit equity investor "
            "investors investment stock stocks shares insurance premium premiums annuity portfolio "
            "borrow broker homeowner homeowners",
        ),
        (
            Topic.JOBS,
            "income resume hiring employer salary job jobs career vacancy recruit candidates mlm "
            "sponsor downline earn earning earnings homeworkers boss wealth",
        ),
        (
            Topic.SHOPPING,
            "shipping discount sale order orders satellite cartridges toner ink price prices buy "
            "buying purchase catalog retail wholesale bargain warranty save coupon gift vacation",
        ),
        (
            Topic.BILLING,
            "invoice billing billed subscription renew renewal refund payment receipt expired "
            "domain hosting overdue",
        ),
        (
            Topic.SECURITY,
            "security vulnerability vulnerabilities exploit attacker advisory cve buffer overflow "
            "worm password passwords encryption gpg pgp ssh openssl firewall crypto intrusion "
            "privacy patch patches",
        ),
        (
            Topic.FILTERING,
            "spam spammer spammers spamassassin razor spambayes filter filters filtering false "
            "positives procmail corpus bayesian ham sa-learn blacklist rbl rules score",
        ),
        (
            Topic.LINUX,
            "linux kernel rpm rpms redhat debian apt apt-get yum gnome kde mandrake suse distro "
            "ilug sysadmin grub lilo partition mount module modules x11 xfree86 cdrom freshrpms "
            "package packages unix bash exmh install installed",
        ),
        (
            Topic.CODE,
            "python perl java javascript compiler function functions class method code bug bugs "
            "cvs commit module script scripts api library xml html tcl string variable sql php "
            "debug developer developers programming",
        ),
        (
            Topic.NEWS,
            "url date news headlines reported reporter police president government war minister "
            "scientists study yesterday court bbc reuters guardian newsisfree telegraph magazine",
        ),
    )
}

PHRASES: Final[dict[str, Topic]] = {
    "next of kin": Topic.SCAM,
    "bank account": Topic.SCAM,
    "million united states dollars": Topic.SCAM,
    "you have won": Topic.SCAM,
    "business proposal": Topic.SCAM,
    "this transaction": Topic.SCAM,
    "over 18": Topic.ADULT,
    "over 21": Topic.ADULT,
    "lose weight": Topic.HEALTH,
    "weight loss": Topic.HEALTH,
    "interest rate": Topic.FINANCE,
    "life insurance": Topic.FINANCE,
    "credit card": Topic.FINANCE,
    "work from home": Topic.JOBS,
    "from home": Topic.JOBS,
    "financial freedom": Topic.JOBS,
    "home based business": Topic.JOBS,
    "make money": Topic.JOBS,
    "free shipping": Topic.SHOPPING,
    "your account": Topic.BILLING,
    "false positive": Topic.FILTERING,
    "red hat": Topic.LINUX,
    "open source": Topic.CODE,
    "url: http": Topic.NEWS,
}


def topic_of(subject: str, body: str) -> Topic:
    """The topic whose words occur most, or `Topic.OTHER` if none has `MIN_POINTS`."""
    text = f"{subject}\n{body[:_READ_CHARS]}".lower()
    found = set(_WORD.findall(text))
    points = {topic: len(words & found) for topic, words in WORDS.items()}
    for phrase, topic in PHRASES.items():
        if phrase in text:
            points[topic] += _PHRASE_POINTS
    best = max(points, key=points.__getitem__)
    return best if points[best] >= MIN_POINTS else Topic.OTHER
