"""Kafka's jars: fetched once with Maven, kept in a cache outside of the work tree."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from infra.process import ServiceFailed, tail

_POM: Final = Path(__file__).with_name("pom.xml")
_POM_NAMESPACE: Final = {"m": "http://maven.apache.org/POM/4.0.0"}
_JAVA_MIN: Final = 17
_INSTEAD: Final = "or set KAFKA_BOOTSTRAP_SERVERS to a running broker"


def java() -> str:
    """The `java` to use: JAVA_HOME's, else the one on PATH. Raises `ServiceFailed` below 17."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise ServiceFailed(
            f"There is no java {where}, and Kafka needs it. Install Java {_JAVA_MIN} or newer, "
            f"{_INSTEAD}."
        )
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None:
        raise ServiceFailed(f"{found} does not say its version, but: {said.strip()}")
    if int(version[1]) < _JAVA_MIN:
        raise ServiceFailed(
            f"Kafka needs Java {_JAVA_MIN} or newer; {found} is Java {version[1]}. Install a newer "
            f"one or set JAVA_HOME, {_INSTEAD}."
        )
    return found


def cache_directory() -> Path:
    """Where the jars of this pom are, or will be: another pom is another directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pom = _POM.read_bytes()
    version = ElementTree.fromstring(pom).findtext(  # noqa: S314 - our own file
        "m:properties/m:kafka.version", namespaces=_POM_NAMESPACE
    )
    return cache / "handoff" / f"kafka-{version}-{sha256(pom).hexdigest()[:12]}"


def jars() -> Path:
    """The directory of Kafka's jars, fetched if it is missing. It exists complete or not at all.

    Several processes may ask at once: one fetches, the others wait for it. Raises `ServiceFailed`
    when Maven is missing or fails.
    """
    directory = cache_directory()
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(directory.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            _fetch(directory)
    return directory


def _fetch(directory: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise ServiceFailed(
            "There is no mvn on PATH, and Kafka's jars are not fetched yet. Install Maven (it is "
            f"needed once), {_INSTEAD}."
        )
    java()  # Maven's own words about a missing Java do not help
    print(f"Fetching {directory.name.rpartition('-')[0]} with Maven, once …", file=sys.stderr)
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a fetch that was killed
    command = [mvn, "--batch-mode", "--quiet", "--strict-checksums", "--file", str(_POM)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ServiceFailed(
            f"Maven could not fetch Kafka's jars (exit code {done.returncode}); the next start "
            f"tries again. Its last lines:\n{tail(done.stdout + done.stderr)}"
        )
    partial.rename(directory)
