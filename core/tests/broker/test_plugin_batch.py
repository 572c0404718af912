"""Test that a batch returns a reason code for each message, whatever happens to the message."""

from hookmq.broker.plugin_batch import Batch, BatchPart
from hookmq.mqtt.properties import EMPTY
from hookmq.plugin import ReasonCode
from hookmq_testing.runtime import VirtualRuntime


def batch_of(runtime: VirtualRuntime, count: int) -> Batch:
    batch = Batch(runtime.promise(), 1)
    if count:
        batch.add("t", 0, False, EMPTY).extend([b"x"] * count)
    batch.close(count)
    return batch


def test_the_codes_are_those_of_the_messages() -> None:
    runtime = VirtualRuntime()
    batch = batch_of(runtime, 4)
    batch.settle(0, 2, ReasonCode.SUCCESS)
    BatchPart(batch, 3).settle(ReasonCode.NOT_AUTHORIZED)
    assert not batch.promise.done()
    BatchPart(batch, 2).settle(ReasonCode.SUCCESS)
    assert runtime.run(batch.promise) == [0, 0, 0, ReasonCode.NOT_AUTHORIZED]


def test_messages_without_a_code_at_the_end_are_known() -> None:
    runtime = VirtualRuntime()
    batch = batch_of(runtime, 3)
    batch.settle(0, 1, ReasonCode.SUCCESS)
    batch.at = 2
    batch.abandon()
    assert not batch.promise.done()
    BatchPart(batch, 1).settle(ReasonCode.UNSPECIFIED_ERROR)
    assert runtime.run(batch.promise) == [0, 0x80, 0x80]


def test_an_empty_batch_is_complete() -> None:
    runtime = VirtualRuntime()
    batch = batch_of(runtime, 0)
    batch.finish()
    assert runtime.run(batch.promise) == []
