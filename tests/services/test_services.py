"""Kafka and Postgres as our own code runs them.

Those that start services of their own do it for several questions at once: a start takes seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from infra.kafka import Kafka, jars
from infra.postgres import binaries
from infra.postgres.server import Postgres
from infra.process import Place, ServiceFailed
from infra.services import Endpoints, Services, services
from tests.services.test_process import runs, wait_until

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of this test's own that every user may pass (pytest's are closed to others)."""
    with TemporaryDirectory() as made:
        path = Path(made)
        path.chmod(0o711)
        yield path


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services of this test's own, whatever the environment offers."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)


def test_services_of_the_environment_are_used_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka.example:9092")
    monkeypatch.setenv("DATABASE_URL", "postgresql://db.example/handoff")
    with services() as at:
        assert at == Endpoints("kafka.example:9092", "postgresql://db.example/handoff")
        assert at.environment == {
            "KAFKA_BOOTSTRAP_SERVERS": "kafka.example:9092",
            "DATABASE_URL": "postgresql://db.example/handoff",
        }


@pytest.mark.services
def test_only_what_the_environment_lacks_is_started_and_nothing_stays(
    own: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka.example:9092")
    with services() as at:
        assert at.kafka_bootstrap_servers == "kafka.example:9092"
        assert list(at.pids) == ["postgres"]
        with psycopg.connect(at.database_url) as conn:
            assert conn.execute("SELECT current_database()").fetchone() == ("handoff",)
            assert conn.execute("SHOW fsync").fetchone() == ("on",)
        made = at.logs["postgres"].parent
        assert made.exists()
    assert not runs(at.pids["postgres"])
    assert not made.exists()
    assert not made.parent.exists()


@pytest.mark.services
def test_data_survive_a_kill_and_a_new_run_in_the_same_directory(own: None, home: Path) -> None:
    with Services(home / "data") as first:
        at = first.endpoints
        assert first.kafka is not None
        assert first.postgres is not None
        _write(at)
        # The markers of the transaction are written after the commit was acknowledged. One broker
        # that is killed in between may forget them (decision 3): not what is asked here.
        assert _read(at) == ("written", b"written")
        for service in (first.kafka, first.postgres):
            service.kill()
            assert service.pid is None
            service.start()
        assert first.endpoints.kafka_bootstrap_servers == at.kafka_bootstrap_servers
        assert first.endpoints.database_url == at.database_url
        assert first.endpoints.pids.keys() == at.pids.keys()
        assert not set(first.endpoints.pids.values()) & set(at.pids.values())
        assert _read(at) == ("written", b"written")
    assert not any(runs(pid) for pid in first.endpoints.pids.values())
    with services(home / "data") as second:
        assert second.kafka_bootstrap_servers == at.kafka_bootstrap_servers
        assert second.database_url == at.database_url
        assert _read(second) == ("written", b"written")


def _write(at: Endpoints) -> None:
    with psycopg.connect(at.database_url) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 'written'::text AS word")
    admin = AdminClient({"bootstrap.servers": at.kafka_bootstrap_servers})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(60)
    producer = Producer(
        {"bootstrap.servers": at.kafka_bootstrap_servers, "transactional.id": "test"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("kept", b"written")
    producer.commit_transaction(60)


def _read(at: Endpoints) -> tuple[str, bytes | None]:
    with psycopg.connect(at.database_url) as conn:
        row = conn.execute("SELECT word FROM kept").fetchone()
    assert row is not None
    consumer = Consumer(
        {
            "bootstrap.servers": at.kafka_bootstrap_servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition("kept", 0, 0)])
        message = consumer.poll(180)
        assert message is not None
        assert message.error() is None
        return row[0], message.value()
    finally:
        consumer.close()


@pytest.mark.services
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_run_in_the_foreground(own: None, name: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _FOREGROUND], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        postgres, made = parent.stdout.readline().split()
        assert address.startswith("DATABASE_URL=postgresql://")
        assert runs(int(postgres))
        parent.send_signal(signal.Signals[name])
    wait_until(lambda: not runs(int(postgres)), "Postgres ends with the run")
    wait_until(lambda: not Path(made).parent.exists(), "the throwaway directory is removed")
    assert (parent.returncode == 0) == (name != "SIGKILL")


#: `python -m infra.services` with Postgres alone, which starts fast, and with its pid and place.
_FOREGROUND = """
import os
os.environ["KAFKA_BOOTSTRAP_SERVERS"] = "kafka.example:9092"
import signal
from infra import services as module
def pause():
    at = running[0].endpoints
    print(at.pids["postgres"], at.logs["postgres"].parent, flush=True)
    real()
real, signal.pause, running = signal.pause, pause, []
class Services(module.Services):
    def __enter__(self):
        running.append(self)
        return super().__enter__()
    @property
    def endpoints(self):
        found = super().endpoints
        return module.Endpoints("", found.database_url, found.pids, found.logs)
module.Services = Services
module.main([])
"""


@pytest.mark.services
def test_two_runs_over_one_directory_are_refused(
    own: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.services._LOCK_TIMEOUT_S", 0.2)
    with services(home, kafka=False), pytest.raises(ServiceFailed, match="another process"):
        Services(home, kafka=False).start()
    with services(home, kafka=False) as again:
        assert runs(again.pids["postgres"])


@pytest.mark.services
def test_a_broken_start_names_the_log_keeps_it_and_leaves_no_process(own: None, home: Path) -> None:
    (home / "postgres").mkdir()
    broken = home / "postgres" / "data"
    broken.mkdir(0o700)
    with pytest.raises(ServiceFailed) as failure:
        Services(home, kafka=False).start()
    log = home / "postgres" / "postgres.log"
    assert str(log) in failure.value.message
    assert "ended while it was starting" in failure.value.message
    assert log.read_text().strip()


@pytest.mark.services
def test_the_failure_of_one_service_stops_the_other(own: None, home: Path) -> None:
    (home / "kafka").mkdir()
    # Kafka's data directory is a file.
    (home / "kafka" / "data").write_text("")
    both = Services(home)
    with pytest.raises(ServiceFailed, match=r"kafka\.log"):
        both.start()
    assert both.endpoints.pids == {}
    # One that was killed in the middle of its start leaves its file, but does not run.
    file = home / "postgres" / "data" / "postmaster.pid"
    assert not file.exists() or not runs(int(file.read_text().split()[0]))


def test_a_cancelled_start_is_given_up(home: Path) -> None:
    place = Place(home)
    place.cancelled.set()
    with pytest.raises(ServiceFailed, match="given up"):
        Postgres(place).start()


@pytest.mark.services
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's Postgres is its own")
def test_as_root_postgres_runs_as_another_user_even_out_of_a_closed_directory(
    own: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = home / "closed"
    closed.mkdir(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(closed))
    with services(kafka=False) as at:
        made = at.logs["postgres"].parent
        assert not made.is_relative_to(closed)
        assert Path(f"/proc/{at.pids['postgres']}").stat().st_uid != 0
        with psycopg.connect(at.database_url) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
    assert not made.exists()


@pytest.mark.services
def test_the_wheels_postgres_serves(own: None, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = binaries.wheel()
    if wheel is None:
        pytest.skip("the wheel is installed only where the system has no Postgres")
    monkeypatch.setenv("HANDOFF_POSTGRES_BIN", str(wheel.directory))
    with services(home, kafka=False) as at, psycopg.connect(at.database_url) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.services
@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands Postgres to somebody else")
def test_programs_that_only_root_can_reach_are_copied(
    own: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = binaries.wheel()
    if wheel is None:
        pytest.skip("the wheel is installed only where the system has no Postgres")
    closed = home / "closed"
    closed.mkdir(0o700)
    package = wheel.directory.parents[1]
    for part in (package, package.with_name(package.name + ".libs")):
        shutil.copytree(part, closed / part.name, symlinks=True)
    programs = closed / wheel.directory.relative_to(package.parent)
    monkeypatch.setenv("HANDOFF_POSTGRES_BIN", str(programs))
    with services(home / "data", kafka=False) as at, psycopg.connect(at.database_url) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_a_directory_without_postgres_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_POSTGRES_BIN", str(home))
    with pytest.raises(ServiceFailed, match="holds no initdb and postgres"):
        Postgres(Place(home / "home")).start()


def test_a_missing_java_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(ServiceFailed, match="no java on PATH"):
        jars.java()


def test_an_old_java_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(home / "bin" / "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ServiceFailed, match="is Java 11"):
        jars.java()


def test_a_missing_maven_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    with pytest.raises(ServiceFailed, match="no mvn on PATH"):
        jars.jars()


def test_jars_are_fetched_once_and_a_failed_fetch_leaves_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(home / "bin" / "java", """echo 'openjdk version "17.0.1" 2021-10-19' >&2""")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    output = 'for a; do case "$a" in -DoutputDirectory=*) d="${a#*=}";; esac; done; mkdir "$d"'
    _program(home / "bin" / "mvn", f"{output}; touch $d/half.jar; echo no route; exit 1")
    with pytest.raises(ServiceFailed, match="no route"):
        jars.jars()
    assert not jars.cache_directory().exists()
    calls = home / "calls"
    _program(home / "bin" / "mvn", f"{output}; touch $d/whole.jar; echo called >> {calls}")
    for _ in range(2):
        assert [p.name for p in jars.jars().iterdir()] == ["whole.jar"]
    assert calls.read_text().count("called") == 1


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_broker_has_no_address_before_its_first_start(home: Path) -> None:
    with pytest.raises(RuntimeError, match="before its first start"):
        _ = Kafka(Place(home)).bootstrap_servers


def test_the_broker_of_this_run_has_the_settings_that_the_runtime_relies_on(
    endpoints: Endpoints,
) -> None:
    if "kafka" not in endpoints.pids:
        pytest.skip("the broker is not ours")
    admin = AdminClient({"bootstrap.servers": endpoints.kafka_bootstrap_servers})
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    found = {k: v.value for k, v in admin.describe_configs([broker])[broker].result(60).items()}
    assert found["transaction.abort.timed.out.transaction.cleanup.interval.ms"] == "1000"
    assert found["auto.create.topics.enable"] == "false"
    assert found["offset.metadata.max.bytes"] == "4096"
    assert found["message.max.bytes"] == str(4 * 2**20)
    assert int(found["group.min.session.timeout.ms"] or 0) <= 6_000


def test_each_test_has_a_database_and_topics_of_its_own(new_settings: object) -> None:
    assert callable(new_settings)
    first, second = new_settings(), new_settings()
    assert first.prefix != second.prefix
    assert first.database_url != second.database_url
    with psycopg.connect(first.database_url) as conn:
        conn.execute("INSERT INTO skips VALUES ('f', 's', 'duplicate', 1)")
    for settings, rows in ((first, 1), (second, 0)):
        with psycopg.connect(settings.database_url) as conn:
            assert conn.execute("SELECT count(*) FROM skips").fetchone() == (rows,)
