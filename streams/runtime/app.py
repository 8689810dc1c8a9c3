"""The Faust app: agents, channels, supervision and life cycle; the sole importer of Faust.

Kafka itself stays with librdkafka (decision 1): the app opens no connection of its own, and each
agent consumes a channel that a polling thread feeds.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import faust
import structlog
from faust.app.base import BootStrategy
from faust.channels import Channel
from mode import Service

from schemas.state import JOIN
from streams.config import Settings, load_settings
from streams.control import ControlReader
from streams.control.keeper import ControlKeeper
from streams.errors import BadSetup, HandoffError
from streams.flow import Flow
from streams.kafka import admin_client, describe_topics
from streams.ledger.effects import Ledger
from streams.ledger.prune import Pruner
from streams.postgres import open_pool
from streams.runtime.health import Vitals
from streams.runtime.health_server import HealthServer
from streams.runtime.join_service import JoinService
from streams.runtime.journal import Journal
from streams.runtime.limit_service import LimitedService
from streams.runtime.services import AgentService, Shared, StageService
from streams.runtime.state_services import ProjectorService, TracerService
from streams.runtime.telemetry import Doubts, lag
from streams.runtime.timer_service import TimerService
from streams.runtime.watchdog import Watchdog
from streams.tracing import configure_tracing, tracing_wanted
from streams.tracing.metrics import Metrics, MetricsPush, metrics_wanted

log = structlog.get_logger(__name__)

PROJECTOR, TIMERS, TRACER = "projector", "timers", "tracer"


class TopicChannel(Channel):  # type: ignore[type-arg]
    """A channel that knows which topic feeds it, so that `faust agents` can list it."""

    def __init__(self, *args: Any, topic_name: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._topic_name = topic_name

    def _clone_args(self) -> dict[str, Any]:
        return {**super()._clone_args(), "topic_name": self._topic_name}

    def get_topic_name(self) -> str:
        return self._topic_name


class _Boot(BootStrategy):
    """Agents, then the threads that feed them; no Kafka client, tables or web server of Faust's."""

    enable_kafka = False
    enable_web = False

    def server(self) -> Iterable[Any]:
        return [*self.sensors(), *self.agents(), cast("HandoffApp", self.app).feeds]

    def agents(self) -> Iterable[Any]:
        return [self.app.agents]


class HandoffApp(faust.App):
    """The app of one worker. `failure` says why it stopped, if not on request."""

    BootStrategy = _Boot
    failure: BaseException | None = None
    feeds: Feeds


class Feeds(Service):
    """Starts and stops what feeds the agents; stops first, so that agents can finish."""

    def __init__(self, app: HandoffApp, parts: Parts, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._app, self.parts = app, parts

    async def on_start(self) -> None:
        # Without this, streams of an app that runs no consumer would skip every event.
        self._app.flow_control.resume()
        await self.parts.start(self.fail)

    async def on_stop(self) -> None:
        failure = self._app.failure
        # An error of ours is said and stops the worker in order; anything else may be a record's.
        await self.parts.stop(clean=failure is None or isinstance(failure, HandoffError))

    def fail(self, error: BaseException) -> None:
        """Called from any thread: the worker cannot go on, so it stops and exits non-zero."""
        loop = self.loop
        loop.call_soon_threadsafe(self._stop_for, error)

    def _stop_for(self, error: BaseException) -> None:
        if self._app.failure is None:
            self._app.failure = error
            if isinstance(error, HandoffError):
                log.error("worker_stops", why=error.message)
            else:
                log.error("worker_stops", why=repr(error), exc_info=error)
            self._ending = self.loop.create_task(self.crash(error))


class Parts:
    """The services of one worker, the connections that they share, what others may know of it."""

    def __init__(self, flow: Flow, wanted: Sequence[str], settings: Settings) -> None:
        self.settings = settings
        self._incarnation = secrets.token_hex(4)
        self._pool = open_pool(settings, max_size=max(4, len(flow.inputs) + 3))
        self._ledger = Ledger(self._pool, settings, incarnation=self._incarnation)
        self._journal = Journal(self._pool, settings, self._incarnation)
        self._control = ControlReader(settings)
        self._channels: dict[str, TopicChannel] = {}
        self._metrics = Metrics()
        self._push = MetricsPush(self._metrics) if metrics_wanted() else None
        self._worker = f"{settings.slot}.{self._incarnation}"
        self.services = self._make(flow, wanted)
        self.vitals = Vitals(self._worker, {s.name: s.facts for s in self.services})
        self._watchdog = Watchdog(settings.watchdog_s, self.vitals)
        self._health = HealthServer(self.vitals, settings, self._pool, self._metrics)
        # The projector's worker, since there is one wherever there is a database to look after.
        projects = any(s.name == PROJECTOR for s in self.services)
        self._pruner = Pruner(self._pool, settings) if projects else None
        standing = self._control.standing
        self._keeper = ControlKeeper(self._pool, settings, standing) if projects else None

    def _make(self, flow: Flow, wanted: Sequence[str]) -> list[AgentService]:
        every = [*flow.inputs, PROJECTOR, TIMERS]
        if tracing_wanted():
            every.append(TRACER)
        services: list[AgentService] = []
        for name in wanted or every:
            if name == PROJECTOR:
                counts = self._push is not None or self.settings.health_port
                metrics = self._metrics if counts else None
                services.append(ProjectorService(self.settings, self._pool, metrics))
            elif name == TIMERS:
                services.append(TimerService(self.settings, self._pool))
            elif name == TRACER:
                services.append(TracerService(self.settings, self._pool))
            else:
                services.append(self._consumer(flow, name))
        return services

    def _consumer(self, flow: Flow, name: str) -> StageService:
        shared = Shared(
            self.settings, self._worker, self._pool, self._ledger, self._journal, self._control
        )
        if name == JOIN and flow.has_join:
            return JoinService(flow, shared)
        stage = flow.stage(name)
        return (LimitedService if stage.limits else StageService)(flow, stage, shared)

    def connect(self, name: str, channel: TopicChannel) -> None:
        self._channels[name] = channel

    async def start(self, fail: Any) -> None:
        self._watchdog.start()
        configure_tracing()
        loop = asyncio.get_running_loop()
        await self._pool.open()
        self._measure(loop)
        if self.settings.health_port:
            self._health.start()
        await self._ledger.open()
        facts = await asyncio.to_thread(self._facts)
        # Whole, before the first record: else what is cancelled would run.
        await asyncio.to_thread(self._control.load)
        self._control.start(fail)
        stages = {s.group: s.account for s in self.services if isinstance(s, StageService)}
        others = {s.group: s.account for s in self.services if s.group not in stages}
        await self._journal.open(stages, others)
        for service in self.services:
            channel = self._channels[service.name]

            def put(batch: Any, channel: TopicChannel = channel) -> None:
                asyncio.run_coroutine_threadsafe(channel.put(batch), loop)

            await service.start(facts[service.topic], put, fail)
        for keeper in (self._pruner, self._keeper):
            if keeper is not None:
                keeper.start()
        self.vitals.started = True
        log.info("worker_ready", slot=self.settings.slot, agents=[s.name for s in self.services])

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        for service in self.services:
            if isinstance(service, StageService):
                self._metrics.gauge(partial(lag, service.ownership))
                if isinstance(service, LimitedService):
                    self._metrics.gauge(service.limits)
            elif service.name == PROJECTOR:
                self._metrics.gauge(Doubts(self._pool, self.settings, loop))
        if self._push is not None:
            self._push.start()

    def _facts(self) -> dict[str, Any]:
        # Projector and tracer read one topic; Kafka refuses a name that stands twice.
        topics = sorted({s.topic for s in self.services})
        with admin_client(self.settings) as admin:
            facts = describe_topics(self.settings, admin, topics)
        missing = [t for t in topics if t not in facts]
        if missing:
            raise BadSetup(f"Topic {missing[0]} does not exist. Run `handoff topics apply` first.")
        return facts

    async def stop(self, *, clean: bool) -> None:
        self.vitals.stopping = True
        for keeper in (self._pruner, self._keeper):
            if keeper is not None:
                await keeper.stop()
        await asyncio.gather(*(s.stop() for s in self.services))
        if self._push is not None:
            await asyncio.to_thread(self._push.stop)
        await self._journal.close(clean=clean)
        await self._ledger.close()
        await asyncio.to_thread(self._health.stop)
        await asyncio.to_thread(self._control.stop)
        await self._pool.close()
        self._watchdog.stop()


def faust_app(
    flow: Flow, wanted: Sequence[str] = (), settings: Settings | None = None
) -> HandoffApp:
    """The app of a worker that runs the stages and agents named in `wanted`, or all of them.

    Raises `BadSetup` for a name that the flow does not have. Connects to nothing before it starts.
    """
    settings = settings or load_settings()
    app = HandoffApp(
        f"{settings.prefix}{flow.name}",
        broker=f"kafka://{settings.kafka_bootstrap_servers.replace(',', ';kafka://')}",
        store="memory://",
        web_enabled=False,
        # Nothing is kept there, but Faust makes the folder, by default in the current one.
        datadir=Path(tempfile.gettempdir()) / f"handoff-faust-{os.getuid()}",
    )
    parts = Parts(flow, wanted, settings)
    app.feeds = Feeds(app, parts)
    for service in parts.services:
        channel = TopicChannel(app, maxsize=0, topic_name=service.topic)
        parts.connect(service.name, channel)
        _add_agent(app, service, channel)
    return app


def _add_agent(app: HandoffApp, service: AgentService, channel: TopicChannel) -> None:
    async def agent(stream: Any) -> None:
        running = app.feeds.parts.vitals.running
        running.add(service.name)
        try:
            await service.run(stream)
        except asyncio.CancelledError:
            if not app.feeds.parts.vitals.stopping:
                # By a handler: Faust would go on without this agent.
                app.feeds.fail(RuntimeError(f"agent {service.name} was cancelled"))
            raise
        except BaseException as e:
            # A stage loop decides the fate of every record, so this is a fault of ours.
            app.feeds.fail(e)
            raise
        finally:
            running.discard(service.name)

    agent.__doc__ = service.help
    app.agent(channel, name=service.name)(agent)
