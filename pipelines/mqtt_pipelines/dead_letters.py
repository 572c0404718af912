"""Report the number of dead letters to the broker, which displays it together with the consumer's lag."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pyspark_mqtt.client import Client
from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.options import reading

from mqtt_pipelines.sinks.fork import DEAD_LETTER
from mqtt_pipelines.sources import consumer, options

if TYPE_CHECKING:
    from mqtt_pipelines.query import Query
    from mqtt_pipelines.sinks import Written
    from mqtt_pipelines.sources import Source

log = logging.getLogger("mqtt_pipelines")


class DeadLetters:
    """Reports the number of dead letters after each batch that has any, and after each query's first batch.

    A failure to report is harmless, because the dead letters are in their table. If the driver is killed after writing
    the table but before reporting, that batch is not counted.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        """Needed because each query calls `written` in a separate thread."""

    def written(self, query: Query, query_id: str, batch_id: int, written: Written) -> None:
        """Report a batch's dead letters. If there is something to report, this call blocks for one request."""
        letters = written.dead_letters
        if letters is None and query.name.endswith(DEAD_LETTER):
            letters = written.rows
        name = consumer(self._source, query.name)
        if letters is None or not name:
            return
        with self._lock:
            if name in self._reported and not letters:
                return
            self._reported.add(name)
        client = Client(reading(options(self._source)))
        try:
            client.report(name, query_id, batch_id, letters)
        except MqttError as error:
            log.warning("The dead letters of consumer %s were not reported: %s", name, error)
        finally:
            client.close()
