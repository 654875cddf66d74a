"""connection.* (class 10) and channel.* (class 20)."""

from dataclasses import field

from lbg_core.amqp.field_table import Bit, Long, LongStr, Octet, Short, ShortStr, TableField
from lbg_core.amqp.methods.base import Method, Role, method

CLIENT, SERVER = Role.CLIENT, Role.SERVER


@method(10, 10, "connection.start", SERVER)
class ConnectionStart(Method):
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: TableField = field(default_factory=dict)
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


@method(10, 11, "connection.start-ok", CLIENT)
class ConnectionStartOk(Method):
    """`response` carries the password, so it is not shown."""

    client_properties: TableField = field(default_factory=dict)
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"

    def __repr__(self) -> str:
        return (
            f"ConnectionStartOk(mechanism={self.mechanism!r}, client_properties={self.client_properties!r})"
        )


@method(10, 20, "connection.secure", SERVER)
class ConnectionSecure(Method):
    challenge: LongStr = b""


@method(10, 21, "connection.secure-ok", CLIENT)
class ConnectionSecureOk(Method):
    response: LongStr = b""

    def __repr__(self) -> str:
        return "ConnectionSecureOk()"


@method(10, 30, "connection.tune", SERVER)
class ConnectionTune(Method):
    """`frame_max` in bytes, `heartbeat` in seconds; 0 means no limit, or no heartbeat."""

    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 31, "connection.tune-ok", CLIENT)
class ConnectionTuneOk(Method):
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


@method(10, 40, "connection.open", CLIENT, after=(ShortStr, Bit))
class ConnectionOpen(Method):
    virtual_host: ShortStr = "/"


@method(10, 41, "connection.open-ok", SERVER, after=(ShortStr,))
class ConnectionOpenOk(Method):
    pass


@method(10, 50, "connection.close")
class ConnectionClose(Method):
    reply_code: Short = 200
    reply_text: ShortStr = ""
    failing_class_id: Short = 0
    failing_method_id: Short = 0


@method(10, 51, "connection.close-ok")
class ConnectionCloseOk(Method):
    pass


@method(10, 60, "connection.blocked", SERVER)
class ConnectionBlocked(Method):
    reason: ShortStr = ""


@method(10, 61, "connection.unblocked", SERVER)
class ConnectionUnblocked(Method):
    pass


@method(10, 70, "connection.update-secret", CLIENT)
class ConnectionUpdateSecret(Method):
    new_secret: LongStr = b""
    reason: ShortStr = ""

    def __repr__(self) -> str:
        return f"ConnectionUpdateSecret(reason={self.reason!r})"


@method(10, 71, "connection.update-secret-ok", SERVER)
class ConnectionUpdateSecretOk(Method):
    pass


@method(20, 10, "channel.open", CLIENT, after=(ShortStr,))
class ChannelOpen(Method):
    pass


@method(20, 11, "channel.open-ok", SERVER, after=(LongStr,))
class ChannelOpenOk(Method):
    pass


@method(20, 20, "channel.flow")
class ChannelFlow(Method):
    active: Bit = True


@method(20, 21, "channel.flow-ok")
class ChannelFlowOk(Method):
    active: Bit = True


@method(20, 40, "channel.close")
class ChannelClose(Method):
    reply_code: Short = 200
    reply_text: ShortStr = ""
    failing_class_id: Short = 0
    failing_method_id: Short = 0


@method(20, 41, "channel.close-ok")
class ChannelCloseOk(Method):
    pass
