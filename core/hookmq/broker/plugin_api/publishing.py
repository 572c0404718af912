"""A plugin publishes messages."""

from collections.abc import Awaitable
from functools import partial

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.publish.pipeline import PublishPipeline, PublishResult
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.model.errors import PluginError
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.model.runtime import Promise
from hookmq.mqtt.properties import EMPTY, In, Properties


class Publishing(HandleBase):
    """The part of the handle that publishes."""

    __slots__ = ()

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> None:
        """Publish with the origin ``plugin:ID``, in a later turn. A refused message is counted, logged and reported to
        `on_dropped`. Raises PluginError for an invalid argument."""
        message = self._message(topic, payload, qos, retain, properties)
        self._on_loop(partial(self._send, message, None))

    def publish_and_wait(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> Awaitable[int]:
        """Publish, and return an awaitable for the number of recipients once the message is committed. The message is
        sent even if nothing awaits it. Awaiting raises PluginError if the message was refused."""
        self._only_on_loop("publish_and_wait()")
        result = self._state.runtime.promise()
        self._send(self._message(topic, payload, qos, retain, properties), result)
        return result

    def _message(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties
    ) -> Message:
        state = self._state
        self._check_types(
            "publish",
            ("topic", topic, str), ("QoS", qos, int), ("payload", payload, bytes), ("retain", retain, bool),
            ("properties", properties, Properties),
        )  # fmt: skip
        self._check_topic(topic, "publish")
        if qos not in (0, 1, 2):
            raise self._refusal("publish", f"QoS {qos!r}")
        now = state.runtime.time()
        interval = properties.message_expiry_interval
        return Message(
            topic,
            payload,
            qos,
            retain,
            properties.only(In.WILL) if properties is not EMPTY else EMPTY,
            None,
            "plugin:" + self._plugin,
            now,
            None if interval is None else now + interval,
        )

    def _send(self, message: Message, result: Promise | None) -> None:
        state = self._state
        depth = DEPTH.get() + 1
        if depth > state.settings.broker.publish_depth:
            # This limit ends loops of plugins that respond to each other's messages.
            state.dropped(message, None, DropReason.DEPTH, Direction.IN, self._plugin)
            self.log("warning", "publish.too_deep", topic=message.topic)
            if result is not None:
                result.set_exception(PluginError(self._plugin, "plugins answer in a loop"))
            return

        def done(outcome: PublishResult) -> None:
            if outcome.matched < 0:
                code = f"0x{outcome.code:02X}"
                self.log("warning", "publish.refused", topic=message.topic, code=code)
            if result is None or result.done():
                return
            if outcome.matched < 0:
                result.set_exception(PluginError(self._plugin, f"refused: {outcome.code.text}"))
            elif outcome.relies:
                self._after_commit(result, outcome.matched)
            else:
                result.set_result(outcome.matched)

        def begin() -> None:
            run = PublishPipeline(state, state.chains(""), message, done, skip=self._plugin)
            at_depth(depth, run.start)
            state.writes.schedule()

        state.runtime.call_soon(begin)
