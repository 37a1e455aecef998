"""Exceptions: those of pymemcache where it is installed, so that handlers of either kind find them."""

import socket

try:
    from pymemcache.exceptions import (
        MemcacheClientError,
        MemcacheError,
        MemcacheIllegalInputError,
        MemcacheServerError,
        MemcacheUnexpectedCloseError,
        MemcacheUnknownCommandError,
        MemcacheUnknownError,
    )
except ImportError:

    class MemcacheError(Exception):
        """All but those of the operating system."""

    class MemcacheClientError(MemcacheError):
        """The request is at fault."""

    class MemcacheUnknownCommandError(MemcacheClientError):
        """The server has no such command."""

    class MemcacheIllegalInputError(MemcacheClientError):
        """A key or a value that memcached does not accept; nothing was sent."""

    class MemcacheServerError(MemcacheError):
        """The server refuses the request."""

    class MemcacheUnknownError(MemcacheError):
        """The server's reply is not one of memcached's protocol."""

    class MemcacheUnexpectedCloseError(MemcacheServerError):
        """The connection was lost; nothing was changed."""


class MemcacheUnknownOutcomeError(MemcacheUnexpectedCloseError, socket.timeout):
    """A change was sent and not answered: it may have been made, or may still be.

    It is caught as a lost connection and as a timeout, since either may be the cause.
    """


__all__ = [
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "MemcacheUnknownOutcomeError",
]
