"""Where a NATS server is: ``nats://[user:password@ | token@]host[:port][,host[:port]...][?option=...]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from onefold.errors import Misuse
from onefold.stores.addresses import masked

if TYPE_CHECKING:
    from onefold.stores.nats.queue import NatsQueue

OPTIONS = ("stream", "replicas", "timeout_s", "credentials")


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """The servers of one cluster, any of which will do, and how to get in, which is never shown."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return ",".join(self.servers)


def parse(url: str) -> Address:
    """The address without its options; nothing in it is asked of a server.

    >>> address = parse("nats://app:s3cret@one:4222,two")
    >>> address
    nats://one:4222,nats://two:4222
    >>> address.password
    's3cret'
    """
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    who, _, hosts = place.rstrip("/").rpartition("@")
    if scheme not in ("nats", "tls"):
        raise Misuse(f"no NATS server at {masked(url)}: must be like nats://host:4222")
    if "@" in who or "@" in options:  # else what follows the first one, or comes before a ?, is taken for a host
        raise Misuse("this address has an @ too many (not shown); write %40 for an @ and %3F for a ? in a password")
    if not hosts or "/" in hosts:
        raise Misuse(f"no NATS server at {scheme}://{hosts}: must be like nats://host:4222")
    servers = tuple(f"{scheme}://{_with_port(host, hosts)}" for host in hosts.split(","))
    user, colon, password = (unquote(part) for part in who.partition(":"))
    if colon:
        return Address(servers, user, password)
    return Address(servers, token=user or None)


def open_nats(url: str) -> NatsQueue:
    """The queue at an address with options: ``stream``, ``replicas``, ``timeout_s``, ``credentials`` (a file)."""
    from onefold.stores.nats.queue import STREAM, TIMEOUT_S, NatsQueue

    address = parse(url)
    options = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise Misuse(f"{address}: no option {name!r}; there are {', '.join(OPTIONS)}", name=name)
    timeout, replicas = options.get("timeout_s", str(TIMEOUT_S)), options.get("replicas")
    try:
        timeout_s, replicas_wanted = float(timeout), None if replicas is None else int(replicas)
    except ValueError:
        raise Misuse(f"{address}: timeout_s={timeout}, replicas={replicas}: these must be numbers") from None
    plain = url.partition("?")[0]
    stream, credentials = options.get("stream", STREAM), options.get("credentials")
    return NatsQueue(plain, stream=stream, replicas=replicas_wanted, timeout_s=timeout_s, credentials=credentials)


def _with_port(host: str, hosts: str) -> str:
    try:
        found = urlsplit(f"//{host}")
        name, port = found.hostname, found.port
    except ValueError:
        name, port = None, None
    if not name:
        raise Misuse(f"no NATS server at {hosts}: {host!r} is not a host with a port")
    return f"[{name}]:{port or 4222}" if ":" in name else f"{name}:{port or 4222}"
