"""Whom Postgres runs as: it refuses root, so root hands it to an ordinary user of the system."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from infra.postgres.binaries import Binaries
from infra.process import Account, ServiceFailed

_CANDIDATES: Final = ("postgres", "nobody")
_PRIVATE: Final = 0o700
_PASSABLE: Final = 0o711


def unprivileged() -> Account | None:
    """None when we are an ordinary user ourselves."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServiceFailed(
        "Postgres does not run as root, and there is no user postgres or nobody to run it as. "
        "Create one, or start handoff as an ordinary user, or set DATABASE_URL."
    )


def home_for(wanted: Path, account: Account | None) -> Path:
    """`wanted`, made; or, if `account` cannot get there, a directory that stands for it.

    The substitute is the same for the same `wanted`, so that its data is found again.
    """
    wanted.mkdir(parents=True, exist_ok=True)
    if account is None:
        return wanted
    wanted.chmod(_PASSABLE)
    if _can(account, "-x", wanted):
        return wanted
    name = f"handoff-postgres-{sha256(str(wanted.resolve()).encode()).hexdigest()[:16]}"
    for base in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))):  # noqa: S108
        if base.is_dir() and _can(account, "-x", base):
            return _substitute(base / name)
    raise ServiceFailed(
        f"The user {account.name}, whom Postgres runs as, can enter neither {wanted} nor a "
        "temporary directory. Set TMPDIR to a directory that everybody may enter."
    )


def _substitute(home: Path) -> Path:
    with suppress(FileExistsError):
        home.mkdir(_PRIVATE)
    # A name that others can guess, in a directory where they may write: only ours will do.
    facts = home.lstat()
    if home.is_symlink() or not home.is_dir() or facts.st_uid != os.geteuid():
        raise ServiceFailed(f"{home} is in the way: it belongs to somebody else. Remove it.")
    home.chmod(_PASSABLE)
    return home


def private_directory(path: Path, account: Account | None) -> None:
    """Make an empty directory that only the account may enter."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(_PRIVATE)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def usable(binaries: Binaries, account: Account | None, home: Path) -> Path:
    """A directory of programs that the account can execute; the wheel's are copied if need be."""
    if account is None or _can(account, "-x", binaries.directory / "postgres"):
        return binaries.directory
    if not binaries.bundled:
        raise ServiceFailed(
            f"The user {account.name}, whom Postgres runs as, cannot execute the programs in "
            f"{binaries.directory}. Make that directory and those above it passable."
        )
    return _copy(binaries.directory, home / "program") / binaries.directory.name


def _copy(directory: Path, copy: Path) -> Path:
    """Out of a virtual environment below /root, say: the installation around `directory`."""
    install = directory.parent
    package = install.parent
    # The programs look for their libraries beside the package, by a relative path.
    libraries = package.with_name(package.name + ".libs")
    if not copy.is_dir():
        partial = copy.with_name(copy.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(install, partial / package.name / install.name, symlinks=True)
        shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for made in (partial, partial / package.name, partial / libraries.name):
            made.chmod(0o755)
        partial.rename(copy)
    return copy / package.name / install.name


def _can(account: Account, test: str, path: Path) -> bool:
    """Ask the kernel as that user: modes, lists and mount options are all in the answer."""
    script = 'test "$0" "$1"'
    return (
        subprocess.run(
            ["/bin/sh", "-c", script, test, str(path)],
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            check=False,
        ).returncode
        == 0
    )
