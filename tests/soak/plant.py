"""What is hurt: a broker and a database of the soak's own, each behind a proxy, and the desk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from infra.kafka import Kafka
from infra.postgres.server import Postgres
from infra.process import Place
from streams import topics
from streams.config import Settings
from streams.state.migrate import migrate
from tests.soak.crew import Crew
from tests.soak.desk import SOCKET_VARIABLE, Desk
from tests.soak.errands import flow
from tests.support.kafka_proxy import KafkaProxy, broker_behind
from tests.support.processes import children
from tests.support.proxy import Proxy


@dataclass(frozen=True, slots=True)
class Plant:
    """Everything that a fault may take hold of. `direct` settings pass by no proxy."""

    kafka: Kafka
    kafka_proxy: KafkaProxy
    postgres: Postgres
    postgres_proxy: Proxy
    desk: Desk
    crew: Crew
    direct: Settings
    #: What workers and submitters have.
    proxied: Settings

    def backends(self) -> list[int]:
        """Processes of the database server that serve a connection of ours."""
        return children(self.postgres.pid)


@contextmanager
def plant(folder: Path) -> Iterator[Plant]:
    """Started, topics and tables made, no worker running; all ends with the block."""
    with ExitStack() as stack:
        kafka_proxy = stack.enter_context(KafkaProxy())
        postgres_proxy = stack.enter_context(Proxy())
        desk = stack.enter_context(Desk(folder))
        kafka = stack.enter_context(broker_behind(kafka_proxy, folder / "kafka"))
        # fsync is off: the soak kills processes, not the machine.
        postgres = Postgres(Place(folder / "postgres"), fsync=False)
        stack.callback(postgres.kill)
        postgres.start()
        direct = Settings(
            kafka_bootstrap_servers=kafka.bootstrap_servers, database_url=postgres.database_url
        )
        port = int(str(conninfo_to_dict(postgres.database_url)["port"]))
        postgres_proxy.upstream_port = port
        proxied = direct.model_copy(
            update={
                "kafka_bootstrap_servers": kafka_proxy.address,
                "database_url": direct.database_url.replace(
                    f":{port}/", f":{postgres_proxy.port}/"
                ),
                # Any outage of some seconds fills it: memory is at its bound early.
                "max_in_flight_records": 500,
            }
        )
        migrate(direct)
        topics.apply(flow, direct)
        crew = Crew(proxied, folder, {SOCKET_VARIABLE: str(desk.socket)})
        stack.callback(crew.end)
        yield Plant(kafka, kafka_proxy, postgres, postgres_proxy, desk, crew, direct, proxied)
