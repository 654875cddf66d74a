# With the broker of README's "Try it". Ctrl-C ends it.
from lbgroup import Group, Member, MemberSettings, Message, Publisher, connect_admin, run

BROKER = "amqp://guest:guest@localhost:5673/"


async def handle(message: Message) -> None:
    print(message.key, message.data.decode())  # return: ack; an exception: retry, in order


async def main() -> None:
    async with connect_admin(BROKER, "http://localhost:15673") as admin:
        await admin.create_group(Group("orders"))
    async with Publisher(BROKER, group="orders") as publisher:
        for number in range(10):
            await publisher.publish(key=f"account-{number % 3}", body=f"order {number}".encode())
    async with Member(MemberSettings(broker=BROKER, group="orders"), handle) as member:
        await member.run()


run(main())  # Ctrl-C and SIGTERM: the member leaves the group first, and nothing is delivered twice
