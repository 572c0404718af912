"""Check subscriptions to queues."""

from collections.abc import Awaitable

from hookmq.plugin import Action, BrokerHandle, ClientInfo, Deny, ReasonCode, Subscription

from hookmq_queues.consumers import weight_in
from hookmq_queues.filters import MAX_FILTERS, is_narrow
from hookmq_queues.queue import Queue, SeekError
from hookmq_queues.topics import CONSUMER_GROUP, PREFIX, START, rest_of


class SubscriptionCheck:
    """Decides whether a client may consume from a queue."""

    def __init__(self, broker: BrokerHandle) -> None:
        self._broker = broker

    def check(
        self, client: ClientInfo, subscription: Subscription, queue: Queue
    ) -> Subscription | Deny | Awaitable[Subscription | Deny]:
        """Return the subscription in the form that the session stores, or a Deny with the reason. This may create the
        group.
        """
        filter = subscription.topic_filter
        name = queue.config.name
        if is_narrow(filter, name):
            why = ""
            if any(level.startswith("$") for level in rest_of(filter).split("/")):
                why = "the levels of a filter below a queue must not start with $"
            elif queue.config.order != "fifo" or queue.config.type == "stream":
                why = f"a subscription to this queue is {PREFIX}{name} or {PREFIX}{name}/#"
            if why:
                return Deny(ReasonCode.TOPIC_FILTER_INVALID, why)
        share = self._share(queue, subscription)
        if isinstance(share, Deny):
            return share
        if subscription.qos == 0:
            why = (
                "a subscription to a queue needs QoS 1, because a message is settled by its PUBACK"
            )
            return Deny(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, why)
        if share is not None and subscription.share is None and self._has_effect(queue, share):
            return self._permitted(client, subscription, queue, share)
        return self._begun(client, subscription, queue, share)

    @staticmethod
    def _has_effect(queue: Queue, group: str) -> bool:
        """Return whether joining a group would create it or claim a place in it."""
        return group not in queue.dispatchers or queue.config.consumers == "exclusive"

    async def _permitted(
        self, client: ClientInfo, subscription: Subscription, queue: Queue, share: str
    ) -> Subscription | Deny:
        """Join the group that a user property names, if the client has permission. The broker checks the permission
        too, but only after the group has been created or a place has been claimed.
        """
        filter = f"$share/{share}/{subscription.topic_filter}"
        verdict = await self._broker.authorize(client, Action.SUBSCRIBE, filter)
        if isinstance(verdict, Deny):
            return verdict
        found = self._begun(client, subscription, queue, share)
        return await found if isinstance(found, Awaitable) else found

    def _begun(
        self, client: ClientInfo, subscription: Subscription, queue: Queue, share: str | None
    ) -> Subscription | Deny | Awaitable[Subscription | Deny]:
        starts = [value for key, value in subscription.user_property if key == START]
        if starts:
            return self._started(client, subscription, queue, share, starts)
        return self._joined(client, subscription, queue, share)

    async def _started(
        self,
        client: ClientInfo,
        subscription: Subscription,
        queue: Queue,
        share: str | None,
        starts: list[str],
    ) -> Subscription | Deny:
        """Create a subscription's group at the position that the subscription names. Do nothing if the group exists."""
        code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        if len(starts) > 1:
            return Deny(
                code, f"the subscription has {len(starts)} user properties start: expected one"
            )
        try:
            await queue.start_group(share or queue.config.first_group, starts[0])
        except SeekError as error:
            return Deny(code, f"start: {error}")
        return self._joined(client, subscription, queue, share)

    def _joined(
        self, client: ClientInfo, subscription: Subscription, queue: Queue, share: str | None
    ) -> Subscription | Deny:
        name = queue.config.name
        if queue.closed:
            return Deny(ReasonCode.TOPIC_FILTER_INVALID, f"there is no queue {name!r}")
        group = share or queue.config.first_group
        dispatcher = queue.group_use.use(group)
        if dispatcher is None or not dispatcher.claim((client.client_id, subscription.filter)):
            why = f"the group {group} of the queue {name} has a consumer and takes no other"
            return Deny(ReasonCode.QUOTA_EXCEEDED, why)
        if not dispatcher.takes_filter(subscription.topic_filter):
            why = f"the consumers of the group {group} have {MAX_FILTERS} different filters, which is the maximum"
            return Deny(ReasonCode.QUOTA_EXCEEDED, why)
        try:
            weight_in(subscription.user_property)
        except ValueError as error:
            return Deny(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, str(error))
        # The session keeps the share name, so the group survives a restart.
        return subscription.replace(qos=1, share=share)

    def _share(self, queue: Queue, subscription: Subscription) -> str | Deny | None:
        """Return the group that a subscription names, or None if it names none."""
        named = {value for name, value in subscription.user_property if name == CONSUMER_GROUP}
        if subscription.share is not None:
            named.add(subscription.share)
        if len(named) > 1:
            why = f"the subscription names {len(named)} groups: expected one"
            return Deny(ReasonCode.TOPIC_FILTER_INVALID, why)
        for group in named:
            why = "" if group in queue.dispatchers else queue.group_use.refusal(group)
            return Deny(ReasonCode.TOPIC_FILTER_INVALID, why) if why else group
        return None
