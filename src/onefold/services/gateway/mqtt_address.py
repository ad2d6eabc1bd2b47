"""Where the broker is: ``mqtt://user:password@host:1883/topic-prefix``, or ``mqtts://`` for TLS."""

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from onefold.errors import Misuse

PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttAddress:
    """A broker, who we are there, and under which prefix the gateways speak ("": any one level, or none)."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    prefix: str = ""

    @property
    def topics(self) -> list[str]:
        """What to subscribe to."""
        if self.prefix:
            return [f"{self.prefix}/gateway/+/event/+"]
        return ["gateway/+/event/+", "+/gateway/+/event/+"]

    def context(self) -> ssl.SSLContext | None:
        """The certificates that this machine trusts; None: no TLS."""
        return ssl.create_default_context() if self.tls else None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}/{self.prefix}"


def parse_address(url: str) -> MqttAddress:
    """The address of a broker. Errors never repeat the URL: it may hold a password.

    >>> address = parse_address("mqtts://me:p%40ss@broker.example/eu868")
    >>> address
    MqttAddress(host='broker.example', port=8883, tls=True, user='me', prefix='eu868')
    >>> str(address), address.password
    ('mqtts://broker.example:8883/eu868', 'p@ss')
    """
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError:
        raise Misuse("the URL of the MQTT broker cannot be read; it is like mqtt://user:password@host:1883") from None
    if found.scheme not in PORTS or not found.hostname:
        raise Misuse("the URL of the MQTT broker must begin with mqtt://HOST or mqtts://HOST", scheme=found.scheme)
    if found.query or found.fragment:
        raise Misuse("the URL of the MQTT broker has a ? or a #; in a password they are written %3F and %23")
    prefix = unquote(found.path).strip("/")
    if set(prefix) & set("+#\0"):
        raise Misuse(f"the topic prefix {prefix!r} of the MQTT broker's URL must be plain, without + and #")
    return MqttAddress(
        host=found.hostname,
        port=port or PORTS[found.scheme],
        tls=found.scheme == "mqtts",
        user=None if found.username is None else unquote(found.username),
        password=None if found.password is None else unquote(found.password),
        prefix=prefix,
    )
