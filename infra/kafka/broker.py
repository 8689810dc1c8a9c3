"""One Kafka node as a child process: formatted, started on free ports, ready when it serves."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.kafka.jars import jars, java
from infra.ports import LOOPBACK, accepts, free_ports
from infra.process import Guarded, Place, fresh_log, lines_since, not_started, run_tool

_HERE: Final = Path(__file__).parent

#: Measured on 2 cores, CPU seconds until "Kafka Server started": G1 9.8, Serial 7.9 to 9.2. Serial
#: also leaves the second core to the workers; its pauses are short with a heap of this size.
_SERVER_FLAGS: Final = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData")
#: For the formatter, which is over before the optimising compiler pays: 1.6 against 3.6 seconds.
_TOOL_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: A broker starts with 6.5 instead of 10.4 CPU seconds so, and serves slower for good.
_BRIEF_FLAG: Final = "-XX:TieredStopAtLevel=1"

_START_TIMEOUT_S: Final = 180.0
_STOP_GRACE_S: Final = 20.0
_PORT_TRIES: Final = 5
_POLL_S: Final = 0.05
#: Group, transactional id and topic that only the readiness check names.
_PROBE: Final = "handoff-readiness"


class PortTaken(Exception):
    """Somebody else was quicker."""


class Kafka:
    """A broker over the data in `place.home`. `start` after `stop` or `kill` keeps ports and data.

    Ports are those of the last run with the same data, if they are free. With `proxy_port` there is
    a second listener, `port_behind_proxy`, whose clients are sent to that port of a proxy: those
    who come by it stay behind it, the others do not notice. `brief`: it is started often and serves
    little, so a quick start counts for more than speed.
    """

    name: Final = "kafka"

    def __init__(self, place: Place, *, proxy_port: int | None = None, brief: bool = False) -> None:
        self.place = place
        self._flags = (*_SERVER_FLAGS, _BRIEF_FLAG) if brief else _SERVER_FLAGS
        self._proxy_port = proxy_port
        self.log = place.home / "kafka.log"
        self._data = place.home / "data"
        self._properties = place.home / "server.properties"
        self._process: Guarded | None = None
        self._ports: tuple[int, ...] = ()

    @property
    def bootstrap_servers(self) -> str:
        if not self._ports:
            raise RuntimeError("Kafka has no address before its first start.")
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def port_behind_proxy(self) -> int:
        """Where the proxy of `proxy_port` connects to."""
        if self._proxy_port is None or not self._ports:
            raise RuntimeError("Only a started Kafka with a proxy_port has a port behind it.")
        return self._ports[2]

    @property
    def pid(self) -> int | None:
        """The broker's process, None while it does not run."""
        return self._process.pid if self._process and self._process.running else None

    def start(self) -> None:
        """Return once the broker answers and serves transactions and groups.

        Raises `ServiceFailed`, which names the log, when it does not.
        """
        if self.pid is not None:
            return
        classpath = f"{jars()}/*"
        common = [f"-Dlog4j2.configurationFile={_HERE / 'log4j2.xml'}", "-cp", classpath]
        program = java()
        self.place.home.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _PORT_TRIES + 1):
            ports = self._ports or free_ports(self._ports_wanted, self._last_ports())
            self._configure(ports)
            if not (self._data / "meta.properties").exists():
                self._format([program, *_TOOL_FLAGS, *common])
            self.place.check("Kafka")
            try:
                self._launch([program, *self._flags, *common], ports[0])
            except PortTaken:
                if self._ports or attempt == _PORT_TRIES:
                    raise not_started(
                        "Kafka", self.log, 0, f"did not get its ports {', '.join(map(str, ports))}"
                    ) from None
                continue
            self._ports = ports
            (self.place.home / "ports").write_text(" ".join(map(str, ports)))
            return

    def stop(self) -> None:
        """Controlled shutdown; returns once the process is gone. Safe to repeat."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL, as a fault; returns once the process is gone. Safe to repeat."""
        if self._process is not None:
            self._process.kill()

    @property
    def _ports_wanted(self) -> int:
        return 2 if self._proxy_port is None else 3

    def _last_ports(self) -> tuple[int, ...]:
        file = self.place.home / "ports"
        return tuple(map(int, file.read_text().split())) if file.exists() else ()

    def _configure(self, ports: tuple[int, ...]) -> None:
        plain, controller, *behind_proxy = ports
        listeners = advertised = f"PLAINTEXT://{LOOPBACK}:{plain}"
        lines = [
            (_HERE / "server.properties").read_text(encoding="utf-8"),
            f"controller.quorum.voters=1@{LOOPBACK}:{controller}",
            f"log.dirs={self._data}",
        ]
        if behind_proxy:
            listeners += f",PROXIED://{LOOPBACK}:{behind_proxy[0]}"
            advertised += f",PROXIED://{LOOPBACK}:{self._proxy_port}"
            protocols = (f"{name}:PLAINTEXT" for name in ("CONTROLLER", "PLAINTEXT", "PROXIED"))
            lines.append(f"listener.security.protocol.map={','.join(protocols)}")
        lines += [
            f"listeners={listeners},CONTROLLER://{LOOPBACK}:{controller}",
            f"advertised.listeners={advertised}",
        ]
        self._properties.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _format(self, command: list[str]) -> None:
        # 22 characters of URL-safe base64: how Kafka writes a UUID.
        cluster = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        arguments += ["--ignore-formatted", "--config", str(self._properties)]
        run_tool("Kafka's storage format", command + arguments, log=self.log)

    def _launch(self, command: list[str], port: int) -> None:
        start = fresh_log(self.log)
        self._process = process = Guarded(
            "Kafka",
            [*command, "kafka.Kafka", str(self._properties)],
            place=self.place,
            log=self.log,
            stop_signal="SIGTERM",
            grace_s=_STOP_GRACE_S,
        )
        try:
            self._wait(process, port, start)
        except BaseException:
            process.kill()
            raise

    def _wait(self, process: Guarded, port: int, start: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        ready = False
        while not ready:
            self.place.check("Kafka")
            if not process.running:
                if "Address already in use" in lines_since(self.log, start):
                    raise PortTaken
                raise not_started("Kafka", self.log, start, "ended while it was starting")
            if time.monotonic() > deadline:
                raise not_started(
                    "Kafka", self.log, start, f"did not serve within {_START_TIMEOUT_S:.0f} s"
                )
            # Our process lives: were the port another's, it would have ended.
            ready = accepts(port) and _serves(f"{LOOPBACK}:{port}")
            if not ready:
                time.sleep(_POLL_S)


def _serves(bootstrap_servers: str) -> bool:
    """True if metadata, transactions and groups are served.

    The first request of either kind makes the topic that its coordinator keeps its state in; done
    here, no client has to wait for it.
    """
    client: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "log_level": 0,  # what goes wrong here is said by the broker's log
    }
    try:
        if not AdminClient(client).list_topics(timeout=5).brokers:
            return False
        Producer({**client, "transactional.id": _PROBE}).init_transactions(10)
        # Not by AdminClient.list_consumer_group_offsets: confluent-kafka 2.16.1 crashes the process
        # when no coordinator is there yet.
        consumer = Consumer({**client, "group.id": _PROBE})
        try:
            consumer.committed([TopicPartition(_PROBE, 0)], timeout=10)
        finally:
            consumer.close()
    except KafkaException:
        return False
    return True
