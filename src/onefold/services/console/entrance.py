"""Who may look: programs with the token in their header, browsers that gave it once; without one, this machine.

A browser cannot send a header with the address that somebody types in. So it is asked for the token, and gets a cookie
that stands for it: a random word of this process, which scripts cannot read and other sites cannot make it send.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Scope

from onefold.services.serving import Admission

FORM_BYTES_MAX: Final = 16 << 10
OURS: Final = ("same-origin", "none")
"""What a browser says of a request that our own page made, or a person who typed the address."""


class Entrance:
    """The door of a console at this port."""

    def __init__(self, token: str | None, host: str, port: int) -> None:
        self._admission = Admission(token, host)
        self._token = token
        self._word = secrets.token_urlsafe(32)
        self._name = f"onefold_console_{port}"  # a cookie is of a host, not of a port

    @property
    def locked(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def check(self, scope: Scope) -> None:
        """Raise the answer for the one who may not. Of other sites only a link to the page itself is followed."""
        site = HTTPConnection(scope).headers.get("sec-fetch-site")
        if site is not None and site not in OURS and scope["path"] != "/":
            raise HTTPException(403, "another site made this request")
        if not self._known(scope):
            self._admission.check(scope)

    def _known(self, scope: Scope) -> bool:
        if not self.locked:
            return False
        given = HTTPConnection(scope).cookies.get(self._name, "")  # whatever cookies other servers of this host set
        return hmac.compare_digest(given.encode(), self._word.encode())

    def cookie(self, form: bytes) -> str | None:
        """The header Set-Cookie for a form with the right token; None for a wrong one."""
        fields = parse_qs(form.decode("utf-8", errors="replace"))  # which is short
        given = fields.get("token", [""])[0].strip()
        if self._token is None or not hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        return f"{self._name}={self._word}; Path=/; HttpOnly; SameSite=Strict"
