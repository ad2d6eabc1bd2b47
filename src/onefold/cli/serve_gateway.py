"""``onefold serve gateway``: radio frames in, each counted once."""

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from typer import Argument, Option

from onefold.cli.options import VARIABLE, AsJson, Host, Port, TokenFile, make_folder, read_token
from onefold.cli.output import announce, people
from onefold.errors import Misuse

if TYPE_CHECKING:
    from onefold.lorawan.flow import GatewayService
    from onefold.lorawan.radio import GatewayLink
    from onefold.lorawan.server import GatewayServer

SWITCH_S: Final = 0.0005
"""How long a thread keeps the interpreter while another wants it. Python's 5 ms, for each turn between the event loop,
the claims and the log, would be most of what a decision takes."""

Folder: TypeAlias = Annotated[Path, Argument(help="Where uplinks and counters are kept; made if it is not there.")]
Devices: TypeAlias = Annotated[Path, Option(help="The registry: TOML, or SQLite with a table 'devices'.")]
Name: TypeAlias = Annotated[
    str | None,
    Option(help="Of this server; a if it is the only one. Those that share a coordinator must differ in it."),
]
Coordinator: TypeAlias = Annotated[
    str | None,
    Option(
        envvar="ONEFOLD_COORDINATOR",
        help=f"What servers share: redis://host:6379/0, sqlite:///file.db. Else this is the only one. {VARIABLE}",
    ),
]
WhenDown: TypeAlias = Annotated[
    Literal["park", "unsure"] | None,
    Option(help="While the coordinator is down frames wait (park, the default), or go up as UNSURE."),
]
Plan: TypeAlias = Annotated[Literal["EU868", "US915"], Option(help="The radio plan.")]
SubBand: TypeAlias = Annotated[int | None, Option(min=1, max=8, help="Of US915: which eight channels; 2 unless told.")]
RxDelay: TypeAlias = Annotated[int, Option(min=1, max=15, help="Seconds from an uplink to its answer.")]
PublicUrl: TypeAlias = Annotated[
    str | None, Option(help="Where stations are sent, if there is a proxy in front: wss://lns.example.")
]
Udp: TypeAlias = Annotated[
    int | None, Option(min=0, max=65535, help="Also take Semtech's packet forwarder on this UDP port.")
]
UdpHost: TypeAlias = Annotated[str | None, Option(help="The address for UDP, if it is another one than --host.")]
UdpAllow: TypeAlias = Annotated[
    list[str] | None, Option(help="Gateways or networks to believe on UDP; may be repeated. Needed beyond loopback.")
]
Mqtt: TypeAlias = Annotated[
    str | None,
    Option(
        envvar="ONEFOLD_MQTT",
        help=f"Also take events of ChirpStack's gateway bridge: mqtt://user:password@host. {VARIABLE}",
    ),
]
Expiry: TypeAlias = Annotated[int, Option(min=1, help="How long a frame is remembered.")]
Fixed: TypeAlias = Annotated[bool, Option("--fixed", help="Count that from the first copy, not from the last.")]
StrictAdr: TypeAlias = Annotated[
    bool,
    Option(
        "--strict-adr",
        help="Forget as ADR 007 does: the last frame of a device counts again after the expiry, a DevNonce after five "
        "minutes. Otherwise both are known for ever.",
    ),
]
MicFailures: TypeAlias = Annotated[
    int,
    Option(
        min=1,
        help="Wrong integrity codes from one station for one address in a minute; beyond, its frames for that address "
        "are not looked at until the minute is over.",
    ),
]
Echo: TypeAlias = Annotated[
    int, Option(min=0, help="Less than this apart, one station's copies are one transmission. 0: off.")
]
KeepAll: TypeAlias = Annotated[bool, Option("--keep-all", help="Also store every reception in the topic 'receptions'.")]
RetainBytes: TypeAlias = Annotated[int | None, Option(min=1, help="Keep about so much of a topic.")]
RetainMs: TypeAlias = Annotated[int | None, Option(min=1, help="Keep records for about so long.")]
Connections: TypeAlias = Annotated[int, Option(min=1, help="Connections at the same time.")]
MessageBytes: TypeAlias = Annotated[int, Option(min=1_000, help="Bytes of one message.")]
InHand: TypeAlias = Annotated[int, Option(min=1, help="Receptions that are not done.")]
Parked: TypeAlias = Annotated[int, Option(min=1, help="Claims that wait for the coordinator.")]


def gateway(
    folder: Folder,
    devices: Devices,
    name: Name = None,
    coordinator: Coordinator = None,
    when_down: WhenDown = None,
    region: Plan = "EU868",
    sub_band: SubBand = None,
    rx_delay: RxDelay = 1,
    host: Host = "127.0.0.1",
    port: Port = 7655,
    token_file: TokenFile = None,
    public_url: PublicUrl = None,
    udp: Udp = None,
    udp_host: UdpHost = None,
    udp_allow: UdpAllow = None,
    mqtt: Mqtt = None,
    expiry_ms: Expiry = 60_000,
    fixed: Fixed = False,
    strict_adr: StrictAdr = False,
    echo_ms: Echo = 0,
    keep_all: KeepAll = False,
    retain_bytes: RetainBytes = None,
    retain_ms: RetainMs = None,
    connections_max: Connections = 1_000,
    message_bytes_max: MessageBytes = 16 << 10,
    in_hand_max: InHand = 20_000,
    parked_max: Parked = 10_000,
    mic_failures_max: MicFailures = 100_000,
    json: AsJson = False,
) -> None:
    """Take radio frames from gateways, count each once, and acknowledge it once.

    LoRa Basics Stations connect by websocket (tc.uri: ws://HOST:PORT). Ctrl-C and SIGTERM stop it: what is in hand is
    decided, stored and answered. SIGHUP reads the registry again; a change of its file does, too.
    """
    _check(
        name, coordinator, mqtt,
        ("--when-down", when_down, "--coordinator", coordinator is not None),
        ("--sub-band", sub_band, "--region US915", region == "US915"),
        ("--udp-host", udp_host, "--udp", udp is not None), ("--udp-allow", udp_allow, "--udp", udp is not None),
    )  # fmt: skip
    from onefold.lorawan.flow import GatewayLimits, GatewaySettings
    from onefold.lorawan.radio import region as plan
    from onefold.lorawan.server import GatewayServer, GatewayServerSettings
    from onefold.producers.topic import Topics, TopicSettings

    judging = GatewaySettings(
        name=name or "a", region=plan(region, sub_band or 2), when_down=when_down or "park",
        expiry_ms=expiry_ms, sliding=not fixed, strict_adr=strict_adr, echo_ms=echo_ms, rx_delay_s=rx_delay,
        keep_all=keep_all,
        limits=GatewayLimits(connections_max=connections_max, message_bytes_max=message_bytes_max, 
            in_hand_max=in_hand_max, parked_max=min(parked_max, in_hand_max), mic_failures_max=mic_failures_max),
    )  # fmt: skip
    settings = GatewayServerSettings(
        host=host, port=port, token=read_token(token_file), coordinator=coordinator, gateway=judging,
        public_url=None if public_url is None else public_url.rstrip("/"),
    )  # fmt: skip
    make_folder(folder)
    with Topics(folder, TopicSettings(retain_bytes=retain_bytes, retain_ms=retain_ms)) as topics:
        server = GatewayServer(
            folder, devices, topics.topic, settings,
            links=lambda to: _links(to, udp_host or host, udp, udp_allow or [], mqtt),
        )  # fmt: skip
        _run(server, folder, as_json=json)


def _check(
    name: str | None, coordinator: str | None, mqtt: str | None, *options: tuple[str, object, str, bool]
) -> None:
    """Refuse what cannot be right before anything is opened; ``options``: option, value, what it needs, is that so?"""
    if coordinator is not None and name is None:
        raise Misuse(
            "--coordinator needs a --name: of two servers with one name each takes what the other has won for its own, "
            "and both answer the device"
        )
    if mqtt is not None:
        from onefold.lorawan.links.mqtt import MqttAddress

        MqttAddress(mqtt)
    for option, value, other, is_there in options:
        if value and not is_there:
            raise Misuse(f"{option} is {value}, but without {other} it has no effect")


def _links(
    service: "GatewayService", host: str, udp: int | None, allow: list[str], mqtt: str | None
) -> Mapping[str, "GatewayLink"]:
    links: dict[str, GatewayLink] = {}
    if udp is not None:
        from onefold.lorawan.links.udp import SemtechUdp

        links["udp"] = SemtechUdp(service, service.region, host=host, port=udp, allow=allow)
    if mqtt is not None:
        from onefold.lorawan.links.mqtt import ChirpstackMqtt

        links["mqtt"] = ChirpstackMqtt(service, service.region, mqtt)
    return links


def _run(server: "GatewayServer", folder: Path, *, as_json: bool) -> None:
    people.lines(*(f"warning: {line}" for line in server.warnings()))
    settings = server.settings
    shared = settings.coordinator
    if shared is not None and shared.startswith(("redis://", "rediss://")):
        from onefold.stores.redis import shown

        shared = shown(shared)  # the address without what may be secret in it

    def ready(url: str) -> None:
        start = {
            "url": url,
            "folder": str(folder),
            "name": settings.gateway.name,
            "region": settings.gateway.region.name,
            "coordinator": shared,
            "devices": len(server.registry.registry),
            "udp": getattr(server.links.get("udp"), "port", None),
            "mqtt": str(address) if (address := getattr(server.links.get("mqtt"), "address", None)) else None,
            "token": settings.token is not None,
        }
        where = [f"{url} (Basics Station: {url.replace('http', 'ws', 1)})"]
        where += [f"UDP port {start['udp']}"] * (start["udp"] is not None)
        where += [f"{start['mqtt']}"] * (start["mqtt"] is not None)
        line = (
            f"server {start['name']}: taking frames of {start['devices']:,} devices for {folder} at "
            f"{', '.join(where)}; {start['region']}; coordinator: {shared or 'none, this is the only server'}"
        )
        announce(line, start, as_json)

    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # the registry and all code are here to stay: to look for garbage in them would hold up frames
    server.run(ready)
