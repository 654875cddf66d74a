"""Consume from code: `python examples/consume.py amqp://guest:guest@localhost/ orders`."""

import sys

from lbgroup import Member, MemberSettings, Message, Verdict, drop, run


async def handle(message: Message) -> Verdict | None:
    if not message.data:
        return drop("an order without content")
    print(message.key, message.data.decode(errors="replace"), flush=True)
    return None


async def main(broker: str, group: str) -> None:
    async with Member(MemberSettings(broker=broker, group=group), handle) as member:
        await member.run()


if __name__ == "__main__":
    run(main(*sys.argv[1:3]))
