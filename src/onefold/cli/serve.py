"""``onefold serve``: servers, which run until they are stopped."""

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from typer import Argument, Option

from onefold.cli import options
from onefold.cli.diff import table_at
from onefold.cli.output import people, tell
from onefold.cli.serve_console import console
from onefold.errors import Misuse
from onefold.producers.records import JUMP_MAX
from onefold.reconcile.records import Records, open_records

if TYPE_CHECKING:
    from onefold.lorawan.flow import GatewayService
    from onefold.lorawan.radio import GatewayLink
    from onefold.lorawan.server import GatewayServer
    from onefold.spark.diff_files import DiffTable

__all__ = ["console", "desk", "gateway", "ingest", "reconcile"]

IDLE_S: Final = 60.0
SESSION_S: Final = 600.0
TRANSFER_S: Final = 3_600.0
RECORD_BYTES_MAX: Final = 512 << 10
MASTER: Final = "local[*]"
SWITCH_S: Final = 0.0005
"""How long a thread keeps the interpreter while another waits for it. With Python's default of 5 ms, switching between
the event loop, the claims and the log would take most of the time of a decision."""

Coordinator: TypeAlias = Annotated[
    str | None,
    Option(envvar="ONEFOLD_COORDINATOR", help=f"What servers share: redis://..., sqlite:///... {options.VARIABLE}"),
]
WhenDown: TypeAlias = Annotated[
    Literal["park", "unsure"] | None,
    Option(help="While the coordinator is down, frames wait (park, the default) or are passed on as UNSURE."),
]
UdpAllow: TypeAlias = Annotated[
    list[str] | None, Option(help="Gateways or networks to trust on UDP; may be repeated. Required beyond loopback.")
]
Mqtt: TypeAlias = Annotated[
    str | None,
    Option(envvar="ONEFOLD_MQTT", help=f"ChirpStack's bridge: mqtt://user:password@host. {options.VARIABLE}"),
]
MicFailures: TypeAlias = Annotated[
    int, Option(min=1, help="Wrong integrity codes per station, address and minute; further ones are not checked.")
]


def ingest(
    folder: Annotated[Path, Argument(help="The folder of the topics; created if it does not exist.")],
    host: options.Host = "127.0.0.1",
    port: options.Port = 7654,
    token_file: options.TokenFile = None,
    deduplicate: Annotated[bool, Option(help="For new topics: store each message once.")] = True,
    memory: Annotated[
        Literal["highest", "gaps"],
        Option(help="For new topics: remember each producer's highest sequence, or also the gaps below it."),
    ] = "highest",
    jump_max: Annotated[int, Option(min=0, help="Reject sequences that jump further ahead; 0: no limit.")] = JUMP_MAX,
    create: Annotated[bool, Option(help="Create a topic with the first message for it.")] = True,
    idle_ms: Annotated[int | None, Option(min=1, help="Forget a producer after so many ms of silence.")] = None,
    retain_bytes: options.RetainBytes = None,
    retain_ms: options.RetainMs = None,
    snapshot_entries: Annotated[int, Option(min=1, help="Snapshot the memory after so many messages.")] = 100_000,
    snapshot_ms: Annotated[int, Option(min=1, help="Snapshot the memory at least every so many ms.")] = 60_000,
    producers_max: Annotated[int, Option(min=1, help="Producers to remember per topic.")] = 100_000,
    topics_max: Annotated[int, Option(min=1, help="Topics that clients can create.")] = 1_000,
    connections_max: options.Connections = 1_000,
    message_bytes_max: Annotated[int, Option(min=1, help="Largest message, in bytes.")] = 1 << 20,
    json: options.AsJson = False,
) -> None:
    """Take messages over HTTP and websocket, and store each once.

    Ctrl-C and SIGTERM stop it: messages that have arrived are stored and answered. A kill loses no acknowledged one.
    """
    from onefold.producers.server import IngestLimits, IngestServer, IngestSettings
    from onefold.producers.topic import Topics, TopicSettings

    settings = TopicSettings(
        deduplicate=deduplicate,
        memory=memory,
        producers_max=producers_max,
        jump_max=jump_max or None,
        idle_ms=idle_ms,
        snapshot_entries=snapshot_entries,
        snapshot_ms=snapshot_ms,
        retain_bytes=retain_bytes,
        retain_ms=retain_ms,
        message_bytes_max=message_bytes_max,
    )
    token = options.read_token(token_file)
    limits = IngestLimits(connections_max=connections_max)
    where = IngestSettings(host=host, port=port, token=token, create=create, limits=limits)
    topics = Topics(folder, settings, topics_max=topics_max)
    options.make_folder(folder)
    server = IngestServer(topics, where)

    about = {"folder": str(folder), "token": token is not None}
    server.run(lambda url: tell(f"taking messages for {folder} at {url}", {"url": url, **about}, json, indent=None))


def desk(
    store: options.Store,
    transport: options.Transport,
    tokens: options.Tokens = None,
    plan: options.Plan = None,
    queues: Annotated[str | None, Option(help="The queues to accept, such as orders,refunds. Default: all.")] = None,
    name: Annotated[str, Option(help="The name of the desk, and of its queue for answers.")] = "desk",
    window_s: Annotated[float, Option(min=1, max=6 * 86_400, help="Seconds to keep requests and answers.")] = 86_400,
    wait_s_max: Annotated[float, Option(min=0, max=600, help="Longest wait of a client for an answer, in s.")] = 30,
    host: options.Host = "127.0.0.1",
    port: options.Port = 7656,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """Take requests over HTTP, and pass each on once.

    PUT /orders/ID reserves a request, POST fills and submits it, GET shows its state, DELETE removes it; ID is a UUID
    of version 7. All of them are idempotent. Ctrl-C and SIGTERM stop the server.
    """
    from onefold.outbox.desk import Desk, DeskServer, DeskSettings

    options.check_lasting(store=store, transport=transport, tokens=tokens)
    allowed = None if queues is None else [queue.strip() for queue in queues.split(",")]
    settings = DeskSettings(host=host, port=port, token=options.read_token(token_file), wait_s_max=wait_s_max)
    requests = Desk(
        store=store, transport=transport, tokens=tokens, plan=plan, name=name, window_s=window_s, queues=allowed
    )  # fmt: skip
    try:
        server = DeskServer(requests, settings)
    except BaseException:
        requests.close()
        raise

    for_what = "all queues" if allowed is None else ", ".join(allowed)
    about = {"queues": allowed, "plan": requests.endpoint.plan, "token": settings.token is not None}
    server.run(lambda url: tell(f"taking requests for {for_what} at {url}", {"url": url, **about}, json, indent=None))


def gateway(
    folder: Annotated[Path, Argument(help="The folder of uplinks and counters; created if it does not exist.")],
    devices: Annotated[Path, Option(exists=True, dir_okay=False, help="The registry, as `lorawan devices` reads it.")],
    name: Annotated[str | None, Option(help="A name unique among the servers of a coordinator. Default: a.")] = None,
    coordinator: Coordinator = None,
    when_down: WhenDown = None,
    region: Annotated[Literal["EU868", "US915"], Option(help="The radio plan.")] = "EU868",
    sub_band: Annotated[int | None, Option(min=1, max=8, help="The group of 8 channels of US915. Default: 2.")] = None,
    rx_delay: Annotated[int, Option(min=1, max=15, help="Seconds from an uplink to its answer.")] = 1,
    host: options.Host = "127.0.0.1",
    port: options.Port = 7655,
    token_file: options.TokenFile = None,
    public_url: Annotated[str | None, Option(help="The URL of a proxy for stations: wss://lns.example.")] = None,
    udp: Annotated[int | None, Option(min=0, max=65535, help="UDP port for Semtech's packet forwarder.")] = None,
    udp_host: Annotated[str | None, Option(help="The address for UDP. Default: --host.")] = None,
    udp_allow: UdpAllow = None,
    mqtt: Mqtt = None,
    expiry_ms: options.Expiry = 60_000,
    fixed: options.Fixed = False,
    strict_adr: options.StrictAdr = False,
    echo_ms: Annotated[int, Option(min=0, help="Ignore a station's copies of a frame for so many ms; 0: off.")] = 0,
    keep_all: Annotated[bool, Option("--keep-all", help="Also store all receptions, in the topic receptions.")] = False,
    retain_bytes: options.RetainBytes = None,
    retain_ms: options.RetainMs = None,
    connections_max: options.Connections = 1_000,
    message_bytes_max: Annotated[int, Option(min=1_000, help="Largest message, in bytes.")] = 16 << 10,
    in_hand_max: Annotated[int, Option(min=1, help="Receptions in progress at the same time.")] = 20_000,
    parked_max: Annotated[int, Option(min=1, help="Claims that may wait for the coordinator.")] = 10_000,
    mic_failures_max: MicFailures = 100_000,
    json: options.AsJson = False,
) -> None:
    """Take radio frames from gateways, count each once, and acknowledge it once.

    LoRa Basics Stations connect by websocket (tc.uri: ws://HOST:PORT). Ctrl-C and SIGTERM stop it: frames that have
    arrived are decided, stored and answered. The registry is reloaded when its file changes, and on SIGHUP.
    """
    _check_gateway(
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
        _run_gateway(server, folder, as_json=json)


def _check_gateway(
    name: str | None, coordinator: str | None, mqtt: str | None, *needs: tuple[str, object, str, bool]
) -> None:
    """Check options before anything is opened; ``needs``: option, value, the option it needs, and whether it is set."""
    if coordinator is not None and name is None:
        raise Misuse(
            "--coordinator needs a --name: two servers of one name would take each other's claims for their own, "
            "and both answer the device"
        )
    if mqtt is not None:
        from onefold.lorawan.links.mqtt import MqttAddress

        MqttAddress(mqtt)
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


def _run_gateway(server: "GatewayServer", folder: Path, *, as_json: bool) -> None:
    people.lines(*(f"warning: {line}" for line in server.warnings()))
    settings = server.settings
    shared = settings.coordinator
    if shared is not None and shared.startswith(("redis://", "rediss://")):
        from onefold.stores.redis import shown

        shared = shown(shared)  # without secrets

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
    gc.freeze()  # the registry and all code are permanent: garbage collection among them would delay frames
    server.run(ready)


def reconcile(
    path: options.NewStore,
    host: options.Host = "127.0.0.1",
    port: options.Port = 7657,
    token_file: options.TokenFile = None,
    read_only: Annotated[bool, Option("--read-only", help="Send records, but accept none.")] = False,
    connections_max: options.Connections = 256,
    sessions_max: Annotated[int, Option(min=1, help="Sessions at the same time.")] = 64,
    session_s: Annotated[float, Option(min=1, help="Seconds a peer may be silent, in total per session.")] = SESSION_S,
    work_s: Annotated[float, Option(min=1, help="CPU seconds a session may take to find the differences.")] = 60,
    record_bytes_max: Annotated[int, Option(min=1, help="Largest record to accept, in bytes.")] = RECORD_BYTES_MAX,
    spark: Annotated[bool, Option("--spark", help="STORE is a table; its rows are records without bodies.")] = False,
    format: options.Format = "auto",
    option: options.ReaderOption = None,
    key: Annotated[str | None, Option(help="Columns that make an id, with commas. Default: all.")] = None,
    time: Annotated[str | None, Option(help="The column to sort records by. Default: by id.")] = None,
    index: Annotated[
        str | None, Option(help="Of a table: the folder of its index. Default: .TABLE.onefold-index beside it.")
    ] = None,
    rows_max: Annotated[
        int | None, Option(min=1, help="Of a table: rows a session may read, 72 bytes each. Default: 1,000,000.")
    ] = None,
    master: Annotated[str, Option(help="The Spark master.")] = MASTER,
    json: options.AsJson = False,
) -> None:
    """Let peers find what they and a store lack of each other, and exchange it.

    Peers use `onefold reconcile STORE ws://HOST:PORT`, `onefold diff TABLE ws://HOST:PORT`, or NIP-77. With --spark the
    store is a table that Spark can read; the options from --format on are for tables. Ctrl-C and SIGTERM stop it.
    """
    from onefold.net.http import check_host
    from onefold.reconcile.peer import ReconcileLimits
    from onefold.reconcile.server import ReconcileServer, ReconcileSettings

    limits = ReconcileLimits(
        connections_max=connections_max, sessions_max=sessions_max, look_silence_s_max=session_s,
        transfer_silence_s_max=max(TRANSFER_S, session_s), work_s_max=work_s, record_bytes_max=record_bytes_max,
        # A peer that is a table runs Spark jobs between its messages.
        idle_s=max(IDLE_S, session_s) if spark or session_s > SESSION_S else IDLE_S,
    )  # fmt: skip
    writable = not read_only and not spark
    settings = ReconcileSettings(
        host=host, port=port, token=options.read_token(token_file), writable=writable, bodies=not spark, limits=limits
    )  # fmt: skip
    check_host(host, settings.token)  # before the file is created
    if spark:
        of_stores = {"--read-only": read_only, "--record-bytes-max": record_bytes_max != RECORD_BYTES_MAX}
        options.refuse(of_stores, "is not for --spark: a table is always read, and never written")
        records = _open_table(table_at(path, format, option), key, time, index, rows_max, master)
    else:
        names = {"--option": option, "--key": key, "--time": time, "--index": index, "--rows-max": rows_max}
        of_tables = {"--format": format != "auto", **names, "--master": master != MASTER}
        options.refuse(of_tables, "is for tables: it needs --spark")
        records = _open_store(path, read_only)
    try:
        size = len(records)
        server = ReconcileServer(records, settings)
    except BaseException:
        records.close()
        raise

    ways = "serving the ids of" if spark else f"{'reconciling' if writable else 'serving'} the records of"
    about = {"store": path, "records": size, "writable": writable, "token": settings.token is not None}

    def say(url: str) -> None:
        url = url.replace("http", "ws", 1)  # for clients; /healthz and /metrics are at http://
        tell(f"{ways} {path} at {url}", {"url": url, **about}, json, indent=None)

    server.run(say)


def _open_store(path: str, read_only: bool) -> Records:
    file = options.file_of(path)  # refuses addresses that are not files
    if read_only and not file.exists():
        raise Misuse(f"{file}: there is no such store, and --read-only would leave a new one empty")
    return open_records(path, make=not read_only)


def _open_table(
    table: "DiffTable", key: str | None, time: str | None, folder: str | None, rows_max: int | None, master: str
) -> Records:
    """The table as a store, with an up-to-date index."""
    from onefold.spark.peer.index import ROWS_MAX, TableIndex
    from onefold.spark.peer.naming import Naming
    from onefold.spark.peer.records import TableRecords
    from onefold.spark.session import session

    naming = Naming(columns=None if key is None else options.names_of(key), time=time)
    people.print("starting Spark ...")
    records = TableRecords(TableIndex(session(master), table, naming, folder=folder), rows_max=rows_max or ROWS_MAX)
    people.print("updating the index ...")
    len(records)
    return records
