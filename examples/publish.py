"""Publish from code: `python examples/publish.py amqp://guest:guest@localhost/ orders`."""

import sys

from lbgroup import Publisher, run


async def main(broker: str, group: str) -> None:
    async with Publisher(broker, group=group) as publisher:
        for number in range(1000):
            await publisher.publish(key=f"order-{number % 50}", body=b"%d" % number, topic="example")
        await publisher.flush()
    print(f"{publisher.report().confirmed} messages confirmed")


if __name__ == "__main__":
    run(main(*sys.argv[1:3]))
