"""What all servers ask of the command line: the token that their clients must send, and a folder to keep things in."""

import os
from pathlib import Path
from typing import Final

from onefold.errors import Misuse

TOKEN: Final = "ONEFOLD_TOKEN"  # noqa: S105 # the name of a variable
TOKEN_BYTES_MAX: Final = 4_096


def read_token(file: Path | None) -> str | None:
    """The token of the file, else of the environment; None: there is none. What cannot be a header is refused."""
    if file is None:
        given, place = os.environ.get(TOKEN), TOKEN
        if given is None:
            return None
    else:
        place = str(file)
        with file.open(encoding="utf-8", errors="replace") as opened:
            given = opened.read(TOKEN_BYTES_MAX + 1)
    token = given.strip()
    if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise Misuse(f"{place}: a token is 1 to {TOKEN_BYTES_MAX:,} printable ASCII characters without spaces")
    return token


def make_folder(folder: Path) -> None:
    """Make it, unless it is there."""
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"{folder}: is a file, must be a folder", folder=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
