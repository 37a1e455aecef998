"""The constructor's arguments of pymemcache, as options of the client below; and a plain connection."""

import socket

from herdwick.exceptions import (
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnknownCommandError,
)


class LegacyWrappingSerde:
    """`serializer` and `deserializer`, two functions, as one serde."""

    def __init__(self, serializer, deserializer):
        self.serialize = serializer or (lambda key, value: (value, 0))
        self.deserialize = deserializer or (lambda key, value, flags: value)


def server_name(server):
    """`(host, port)`, `host:port`, `host` or the path of a unix socket, as an address."""
    if isinstance(server, (tuple, list)):
        host, port = server
        host = "[%s]" % host if ":" in host and not host.startswith("[") else host
        return "%s:%d" % (host, int(port))
    if not isinstance(server, str):
        raise ValueError("Unsupported server specification: %r" % (server,))
    return server


def choose_serde(serde, serializer, deserializer):
    """The serde; `None` where values are bytes."""
    if serde is None and (serializer or deserializer):
        return LegacyWrappingSerde(serializer, deserializer)
    return serde


def prefix_bytes(key_prefix):
    if isinstance(key_prefix, str):
        key_prefix = key_prefix.encode("ascii")
    if not isinstance(key_prefix, bytes):
        raise TypeError("key_prefix should be bytes.")
    return key_prefix


def tls_options(tls_context, tls):
    """Options of TLS. An `SSLContext` does not show its files, so that only a default one is accepted."""
    if tls_context is not None:
        raise ValueError(
            "herdwick does not use ssl.SSLContext: pass tls={'authorities': 'ca.pem'}, with "
            "'certificate' and 'key' if the server asks for them"
        )
    if tls is None:
        return {}
    unknown = set(tls) - {"authorities", "certificate", "key", "name"}
    if unknown:
        raise ValueError("tls has no %s" % ", ".join(sorted(unknown)))
    return {"tls": True, **{"tls_" + name: value for name, value in tls.items()}}


def options(timeout, connect_timeout, transport, window, login, tls_context, tls):
    made = {
        "timeout": timeout,
        "connect_timeout": connect_timeout,
        "transport": transport,
        "window": window,
        **tls_options(tls_context, tls),
    }
    if login is not None:
        made["login"] = login
    return made


def connect(server, timeout):
    """A connection in plain text, for commands that the client has no call for."""
    name = server_name(server)
    path = name[5:] if name.startswith("unix:") else name
    if "/" in path:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(timeout)
        plain.connect(path)
        return plain
    host, colon, port = name.rpartition(":")
    if not colon or name.endswith("]"):
        host, port = name, "11211"
    return socket.create_connection((host.strip("[]"), int(port)), timeout)


def raise_error(line, command):
    """Raises what a reply of one line reports, if it is an error."""
    if line.startswith(b"ERROR"):
        raise MemcacheUnknownCommandError(command)
    for start, error in (
        (b"CLIENT_ERROR", MemcacheClientError),
        (b"SERVER_ERROR", MemcacheServerError),
    ):
        if line.startswith(start):
            raise error(line[len(start) + 1 :].rstrip())
