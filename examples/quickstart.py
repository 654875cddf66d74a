# Start a broker with `lbg broker serve --data-dir ./data --detach`, then `python quickstart.py`. Ctrl-C ends it.
from lbgroup import Group, Member, MemberSettings, Message, Publisher, connect_admin, run

BROKER = "amqp://guest:guest@localhost/"


async def handle(message: Message) -> None:
    print(message.key, message.data.decode())  # return: ack; an exception: retry, in order


async def main() -> None:
    async with connect_admin(BROKER) as admin:
        await admin.create_group(Group("orders", hash_count=100, queue_count=8, queue_size_mb=64))
    async with Publisher(BROKER, group="orders") as publisher:
        for number in range(10):
            await publisher.publish(key=f"account-{number % 3}", body=f"order {number}".encode())
    async with Member(MemberSettings(broker=BROKER, group="orders"), handle) as member:
        await member.run()


run(main())  # Ctrl-C and SIGTERM: the member leaves the group first, and nothing is delivered twice
