"""Another `max_message_size` of a running RabbitMQ node, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testing.rabbitmq.node import RabbitNode


@contextmanager
def messages_of_at_most(node: RabbitNode, size_bytes: int) -> Iterator[None]:
    """For channels that are opened within the block."""
    before = int(node.evaluate("element(2, application:get_env(rabbit, max_message_size))"))
    try:
        node.evaluate(_setting(size_bytes))
        yield
    finally:
        node.evaluate(_setting(before))


def _setting(size_bytes: int) -> str:
    """The setting, and where RabbitMQ 3.12 and later keep it while they run."""
    return (
        f"application:set_env(rabbit, max_message_size, {size_bytes}), "
        f"persistent_term:put(max_message_size, {size_bytes})"
    )
