"""Moto's S3 on loopback, in a process of its own: real requests, nothing kept but in its memory."""

import http.client
import socket
import sys
from pathlib import Path
from typing import Any

from tests.lib.local_server import LocalServer, free_port

BUCKET = "messages"


class S3Server(LocalServer):
    def __init__(self, folder: Path):
        super().__init__(folder, free_port())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a client needs to know of it."""
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
        return {**keys, "AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": "us-east-1"}

    def words(self) -> list[str]:
        program = "from moto.server import main; main()"
        return [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(self.port)]

    def greet(self, client: socket.socket) -> bool:
        client.close()
        answer = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        answer.request("GET", "/moto-api/")
        return answer.getresponse().status == 200

    def client(self) -> Any:
        from botocore.session import get_session

        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}  # whatever the environment says
        return get_session().create_client("s3", region_name="us-east-1", endpoint_url=self.url, **keys)

    def names(self, prefix: str = "", bucket: str = BUCKET) -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def upload(self, file: Path, key: str) -> None:
        self.client().put_object(Bucket=BUCKET, Key=key, Body=file.read_bytes())
