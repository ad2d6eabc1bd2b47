"""``onefold serve gateway``: radio frames in, each counted once."""

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from typer import Argument, Option

from onefold.cli import options
from onefold.cli.output import people, tell
from onefold.errors import Misuse

if TYPE_CHECKING:
    from onefold.lorawan.flow import GatewayService
    from onefold.lorawan.server import GatewayLink, GatewayServer

SWITCH_S: Final = 0.0005
"""How long a thread keeps the interpreter while another wants it. Python's 5 ms, for each turn between the event loop,
the claims and the log, would be most of what a decision takes."""

Coordinator: TypeAlias = Annotated[
    str | None,
    Option(envvar="ONEFOLD_COORDINATOR", help=f"What servers share: redis://..., sqlite:///... {options.VARIABLE}"),
]
WhenDown: TypeAlias = Annotated[
    Literal["park", "unsure"] | None,
    Option(help="While the coordinator is down frames wait (park, the default), or go up as UNSURE."),
]
UdpAllow: TypeAlias = Annotated[
    list[str] | None, Option(help="Gateways or networks to believe on UDP; may be repeated. Needed beyond loopback.")
]
Mqtt: TypeAlias = Annotated[
    str | None,
    Option(envvar="ONEFOLD_MQTT", help=f"ChirpStack's bridge: mqtt://user:password@host. {options.VARIABLE}"),
]
MicFailures: TypeAlias = Annotated[
    int, Option(min=1, help="Wrong integrity codes of a station for an address in a minute; more are not looked at.")
]


def gateway(
    folder: Annotated[Path, Argument(help="Where uplinks and counters are kept; made if it is not there.")],
    devices: Annotated[Path, Option(help="The registry: TOML, or SQLite with a table 'devices'.")],
    name: Annotated[str | None, Option(help="Unique among the servers of a coordinator; alone: a.")] = None,
    coordinator: Coordinator = None,
    when_down: WhenDown = None,
    region: Annotated[Literal["EU868", "US915"], Option(help="The radio plan.")] = "EU868",
    sub_band: Annotated[int | None, Option(min=1, max=8, help="Of US915: which eight channels; by default 2.")] = None,
    rx_delay: Annotated[int, Option(min=1, max=15, help="Seconds from an uplink to its answer.")] = 1,
    host: options.Host = "127.0.0.1",
    port: options.Port = 7655,
    token_file: options.TokenFile = None,
    public_url: Annotated[str | None, Option(help="Where a proxy in front takes stations: wss://lns.example.")] = None,
    udp: Annotated[int | None, Option(min=0, max=65535, help="UDP port for Semtech's packet forwarder.")] = None,
    udp_host: Annotated[str | None, Option(help="The address for UDP; by default that of --host.")] = None,
    udp_allow: UdpAllow = None,
    mqtt: Mqtt = None,
    expiry_ms: options.Expiry = 60_000,
    fixed: options.Fixed = False,
    strict_adr: options.StrictAdr = False,
    echo_ms: Annotated[int, Option(min=0, help="A station's copies less ms apart are one transmission. 0: off.")] = 0,
    keep_all: Annotated[bool, Option("--keep-all", help="Also store all receptions, in the topic receptions.")] = False,
    retain_bytes: options.RetainBytes = None,
    retain_ms: options.RetainMs = None,
    connections_max: options.Connections = 1_000,
    message_bytes_max: Annotated[int, Option(min=1_000, help="Bytes of one message.")] = 16 << 10,
    in_hand_max: Annotated[int, Option(min=1, help="Receptions that are not done.")] = 20_000,
    parked_max: Annotated[int, Option(min=1, help="Claims that wait for the coordinator.")] = 10_000,
    mic_failures_max: MicFailures = 100_000,
    json: options.AsJson = False,
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
        host=host, port=port, token=options.read_token(token_file), coordinator=coordinator, gateway=judging,
        public_url=None if public_url is None else public_url.rstrip("/"),
    )  # fmt: skip
    options.make_folder(folder)
    with Topics(folder, TopicSettings(retain_bytes=retain_bytes, retain_ms=retain_ms)) as topics:
        server = GatewayServer(
            folder, devices, topics.topic, settings,
            links=lambda to: _links(to, udp_host or host, udp, udp_allow or [], mqtt),
        )  # fmt: skip
        _run(server, folder, as_json=json)


def _check(name: str | None, coordinator: str | None, mqtt: str | None, *needs: tuple[str, object, str, bool]) -> None:
    """Refuse what cannot be right before anything is opened; ``needs``: option, value, what it needs, is that so?"""
    if coordinator is not None and name is None:
        raise Misuse(
            "--coordinator needs a --name: of two servers with one name each takes what the other has won for its own, "
            "and both answer the device"
        )
    if mqtt is not None:
        from onefold.lorawan.links.mqtt import parse_address

        parse_address(mqtt)
    for option, value, other, is_there in needs:
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
        udp, mqtt = getattr(server.links.get("udp"), "port", None), getattr(server.links.get("mqtt"), "address", None)
        start = {
            "url": url,
            "folder": str(folder),
            "name": settings.gateway.name,
            "region": settings.gateway.region.name,
            "coordinator": shared,
            "devices": len(server.registry.registry),
            "udp": udp,
            "mqtt": None if mqtt is None else str(mqtt),
            "token": settings.token is not None,
        }
        links = "" if udp is None else f", UDP port {udp}"
        links += "" if mqtt is None else f", {mqtt}"
        line = (
            f"server {start['name']}: taking frames of {start['devices']:,} devices for {folder} at {url} (Basics "
            f"Station: {url.replace('http', 'ws', 1)}){links}; {start['region']}; coordinator: "
            f"{shared or 'none, this is the only server'}"
        )
        tell(line, start, as_json, indent=None)

    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # the registry and all code are here to stay: to look for garbage in them would hold up frames
    server.run(ready)
