"""Why credentials were not taken: for the log of the server, never for whoever sent them."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):  # noqa: N818 - what happened, not an error of the program
    """The credentials do not show who calls. `cause` names ids and subjects at most, and nothing secret."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
