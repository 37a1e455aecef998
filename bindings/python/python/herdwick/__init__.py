"""Client of Herdwick and of memcached, with the interface of pymemcache.

>>> from herdwick import Client
>>> client = Client("localhost:11211")          # doctest: +SKIP
>>> client.set("greeting", b"hello")            # doctest: +SKIP
True

The transport is the best that both ends have: shared memory, an RDMA device, RoCEv2 in user space, or else
memcached's protocol over TCP. `herdwick.asyncio` has the client for asyncio.
"""

import os
import socket
import threading
import weakref

from herdwick import _herdwick
from herdwick._herdwick import __version__
from herdwick._options import (
    choose_serde,
    connect,
    options,
    prefix_bytes,
    raise_error,
    server_name,
)
from herdwick.exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    MemcacheUnknownOutcomeError,
)

__all__ = [
    "Client",
    "HashClient",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "MemcacheUnknownOutcomeError",
    "PooledClient",
    "__version__",
]

# Statistics that are no integers.
_STAT_TYPES = {
    b"version": bytes,
    b"rusage_user": lambda text: float(text.replace(b":", b".")),
    b"rusage_system": lambda text: float(text.replace(b":", b".")),
    b"hash_is_expanding": lambda text: int(text) != 0,
    b"slab_reassign_running": lambda text: int(text) != 0,
    b"inter": bytes,
    b"growth_factor": float,
    b"stat_key_prefix": bytes,
    b"umask": lambda text: int(text, 8),
    b"detail_enabled": lambda text: int(text) != 0,
    b"cas_enabled": lambda text: int(text) != 0,
    b"auth_enabled_sasl": lambda text: text == b"yes",
    b"maxconns_fast": lambda text: int(text) != 0,
    b"slab_reassign": lambda text: int(text) != 0,
    b"slab_automove": lambda text: int(text) != 0,
}


def _stat(name, value):
    try:
        return _STAT_TYPES.get(name, int)(value)
    except ValueError:
        return value


class _Calls(_herdwick._Client):
    """What clients of one server and of several have in common."""

    def _begin(self, servers, chosen, socket_module, serde, keys, habits):
        """What the constructors do with the arguments that they share, each in pymemcache's order."""
        if socket_module is not socket:
            raise ValueError("herdwick uses the sockets of the system: leave socket_module out")
        prefix, is_unicode, encoding = keys
        is_lenient, default_noreply = habits
        self._ignore_exc = bool(is_lenient)
        self._setup(
            [server_name(server) for server in servers],
            serde=serde,
            key_prefix=prefix_bytes(prefix),
            allow_unicode_keys=bool(is_unicode),
            encoding=encoding,
            ignore_exc=bool(is_lenient),
            default_noreply=bool(default_noreply),
            options=chosen,
        )

    get_multi = _herdwick._Client.get_many
    set_multi = _herdwick._Client.set_many
    delete_multi = _herdwick._Client.delete_many
    gets_multi = _herdwick._Client.gets_many

    def quit(self):
        """Closes the connection; the next call opens another."""
        self.close()

    disconnect_all = _herdwick._Client.close

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __setitem__(self, key, value):
        self.set(key, value, noreply=True)

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __delitem__(self, key):
        self.delete(key, noreply=True)


class Client(_Calls):
    """A client of one server, a drop-in for `pymemcache.client.base.Client`.

    Threads may share it; their calls take turns. With `noreply` a call waits for its answer all the same, and
    raises what has gone wrong. Beside pymemcache's arguments there are `transport` ("auto", "tcp", or a
    fabric), `window` (requests in flight at each worker), `login` ("user:password") and `tls`
    (a dict with "authorities", "certificate", "key", "name"). `no_delay`, `socket_keepalive` and
    `socket_module` have no effect: connections have TCP_NODELAY and keepalive, and sockets are the system's.
    """

    def __init__(
        self,
        server,
        serde=None,
        serializer=None,
        deserializer=None,
        connect_timeout=None,
        timeout=None,
        no_delay=False,
        ignore_exc=False,
        socket_module=socket,
        socket_keepalive=None,
        key_prefix=b"",
        default_noreply=True,
        allow_unicode_keys=False,
        encoding="ascii",
        tls_context=None,
        *,
        transport="auto",
        window=64,
        login=None,
        tls=None,
    ):
        self.server = server
        self._timeout = timeout
        self._unicode = bool(allow_unicode_keys)
        self._plain_only = "login" if login else "TLS" if tls else None
        self._begin(
            [server],
            options(timeout, connect_timeout, transport, window, login, tls_context, tls),
            socket_module,
            choose_serde(serde, serializer, deserializer),
            (key_prefix, allow_unicode_keys, encoding),
            (ignore_exc, default_noreply),
        )

    def flush_all(self, delay=0, noreply=None):
        """Removes all items."""
        if delay:
            raise MemcacheIllegalInputError("herdwick flushes at once: delay is 0")
        self._flush_all()
        return True

    def stats(self, *arguments):
        """The statistics of a group, as a dict."""
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in arguments]
        try:
            found = self._stats(0, " ".join(words))
        except Exception:
            if self._ignore_exc:
                return {}
            raise
        pairs = ((name.encode(), value.encode()) for name, value in found)
        return {name: _stat(name, value) for name, value in pairs}

    def version(self):
        """The server's version."""
        return self._version(0).encode()

    def check_key(self, key, key_prefix):
        """Checks a key, and adds the prefix."""
        return _herdwick.check_key(key, self._unicode, key_prefix)

    def raw_command(self, command, end_tokens="\r\n"):
        """Sends a command of memcached's text protocol on a connection of its own, and returns the reply up to
        the first `end_tokens`."""
        encoding = "utf8" if self._unicode else "ascii"
        command = command.encode(encoding) if isinstance(command, str) else command
        end = end_tokens.encode(encoding) if isinstance(end_tokens, str) else end_tokens
        if self._plain_only is not None:
            raise MemcacheClientError("raw_command knows no %s" % self._plain_only)
        reply = b""
        with connect(self.server, self._timeout) as plain:
            plain.sendall(command + b"\r\n")
            while end not in reply:
                piece = plain.recv(65536)
                if not piece:
                    raise MemcacheUnexpectedCloseError("the server closed the connection")
                reply += piece
                # An error is one line, whatever the end of a reply is.
                if reply.endswith(b"\r\n"):
                    raise_error(reply, command)
        return reply.partition(end)[0]

    def cache_memlimit(self, memlimit):
        """Sets the server's memory limit, in megabytes."""
        if not isinstance(memlimit, int):
            raise MemcacheIllegalInputError("memlimit must be integer, got bad value: %r" % memlimit)
        self.raw_command(b"cache_memlimit %d" % memlimit)
        return True

    def shutdown(self, graceful=False):
        """Ends a server that runs with `--enable-shutdown`."""
        try:
            self.raw_command(b"shutdown graceful" if graceful else b"shutdown")
        except MemcacheUnexpectedCloseError:
            pass

    @property
    def transport(self):
        """The transport; `None` without a connection: before the first call, and after `close`."""
        return self._transport(0)[0]

    @property
    def fallback(self):
        """Why the transport is not a better one; `None` if it is the best."""
        return self._transport(0)[1]


class HashClient(_Calls):
    """A client of several servers, as `pymemcache.client.hash.HashClient`.

    Keys belong to the servers that pymemcache's gives them, or those of libmemcached, by `distribution`
    ("rendezvous", "ketama", "ketama-one-at-a-time"). A server that has failed `retry_attempts + 1` times in a
    row leaves for `dead_timeout` seconds, and its keys go to the others. A call may take `connect_timeout`
    and `timeout` together, or the one of them that is given. With `ignore_exc`, reads that fail are misses,
    and changes that fail return `False`; `set_many` then returns the keys that were not stored.

    `hasher` is pymemcache's `RendezvousHash`, or left out. What herdwick has no use for (`use_pooling` and its
    arguments, `retry_timeout`) is refused where it is not as in pymemcache when left out.
    """

    def __init__(
        self,
        servers,
        hasher=None,
        serde=None,
        serializer=None,
        deserializer=None,
        connect_timeout=None,
        timeout=None,
        no_delay=False,
        socket_module=socket,
        socket_keepalive=None,
        key_prefix=b"",
        max_pool_size=None,
        pool_idle_timeout=0,
        lock_generator=None,
        retry_attempts=2,
        retry_timeout=1,
        dead_timeout=60,
        use_pooling=False,
        ignore_exc=False,
        allow_unicode_keys=False,
        default_noreply=True,
        encoding="ascii",
        tls_context=None,
        *,
        distribution="rendezvous",
        transport="auto",
        window=64,
        login=None,
        tls=None,
    ):
        if hasher is not None and getattr(hasher, "__name__", None) != "RendezvousHash":
            raise ValueError("herdwick places keys by `distribution`: leave hasher out")
        for name, given, usual in (
            ("max_pool_size", max_pool_size, None),
            ("pool_idle_timeout", pool_idle_timeout, 0),
            ("lock_generator", lock_generator, None),
            ("retry_timeout", retry_timeout, 1),
            ("use_pooling", use_pooling, False),
        ):
            if given != usual:
                raise ValueError("herdwick has no use for %s: leave it out" % name)
        # A call dials in its own time: each limit that is given holds.
        given = [limit for limit in (timeout, connect_timeout) if limit is not None]
        chosen = options(sum(given) if given else None, None, transport, window, login, tls_context, tls)
        chosen["distribution"] = distribution
        chosen["eject"] = (retry_attempts + 1, float(dead_timeout))
        self.servers = list(servers)
        self._begin(
            self.servers,
            chosen,
            socket_module,
            choose_serde(serde, serializer, deserializer),
            (key_prefix, allow_unicode_keys, encoding),
            (ignore_exc, default_noreply),
        )

    def flush_all(self, delay=0, noreply=None):
        """Removes all items of every server."""
        if delay:
            raise MemcacheIllegalInputError("herdwick flushes at once: delay is 0")
        self._flush_all()

    def set_many(self, values, expire=0, noreply=None, flags=None):
        """Stores many values; with `ignore_exc`, a list of the keys that were not stored."""
        if not self._ignore_exc:
            return super().set_many(values, expire, noreply, flags)
        pairs = list(values.items())
        return [key for key, value in pairs if not self.set(key, value, expire, noreply, flags)]

    set_multi = set_many

    def delete_many(self, keys, noreply=None):
        """Removes many items."""
        if not self._ignore_exc:
            return super().delete_many(keys, noreply)
        for key in list(keys):
            self.delete(key, noreply)
        return True

    delete_multi = delete_many


def _lenient(name):
    strict = getattr(_Calls, name)

    def call(self, key, *arguments, **named):
        try:
            return strict(self, key, *arguments, **named)
        except Exception:
            if not self._ignore_exc:
                raise
            # A key that is wrong is reported all the same, as by pymemcache.
            self.server_of(key)
            return False

    call.__name__ = name
    call.__doc__ = strict.__doc__
    return call


for _name in "set add replace append prepend cas delete incr decr touch".split():
    setattr(HashClient, _name, _lenient(_name))


_pools = weakref.WeakSet()


def _renew_pools():
    for pool in list(_pools):
        pool._renew()


os.register_at_fork(after_in_child=_renew_pools)


class PooledClient:
    """Clients of one server, one for each thread at a time, as `pymemcache.client.base.PooledClient`.

    `max_pool_size` clients exist at most; a call beyond raises `RuntimeError`, as there.
    """

    client_class = Client

    def __init__(self, server, *arguments, max_pool_size=None, **named):
        self.server = server
        self._arguments = (server, *arguments)
        self._named = named
        self._free = []
        self._made = 0
        self._most = max_pool_size or 2**31
        self._lock = threading.Lock()
        # What is wrong with the arguments is found now, not by the first call.
        self._free.append(self._make())
        self._made = 1
        _pools.add(self)

    def _renew(self):
        """In a forked child: no other thread is in a call here, whatever was so in the parent."""
        self._lock = threading.Lock()
        self._made = len(self._free)

    def _make(self):
        return self.client_class(*self._arguments, **self._named)

    def _call(self, name, arguments, named):
        with self._lock:
            if self._free:
                client = self._free.pop()
            elif self._made < self._most:
                self._made += 1
                client = None
            else:
                raise RuntimeError("Too many objects, >= %d" % self._most)
        try:
            client = client or self._make()
            return getattr(client, name)(*arguments, **named)
        finally:
            with self._lock:
                if client is None:
                    self._made -= 1
                else:
                    self._free.append(client)

    def close(self):
        """Closes the connections that no call uses."""
        with self._lock:
            clients = list(self._free)
        for client in clients:
            client.close()

    disconnect_all = close
    quit = close

    def _of_one(self, name):
        with self._lock:
            client = self._free[-1] if self._free else None
        return getattr(client, name) if client is not None else None

    @property
    def transport(self):
        """The transport of a connection that no call uses; `None` without one."""
        return self._of_one("transport")

    @property
    def fallback(self):
        """Why the transport is not a better one; `None` if it is the best."""
        return self._of_one("fallback")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __getitem__(self, key):
        return self._call("__getitem__", (key,), {})

    def __setitem__(self, key, value):
        self._call("__setitem__", (key, value), {})

    def __delitem__(self, key):
        self._call("__delitem__", (key,), {})


def _pooled(name):
    def call(self, *arguments, **named):
        return self._call(name, arguments, named)

    call.__name__ = name
    call.__doc__ = getattr(Client, name).__doc__
    return call


for _name in (
    "get get_many get_multi gets gets_many set set_many set_multi add replace append prepend cas delete "
    "delete_many delete_multi incr decr touch stats version flush_all raw_command cache_memlimit shutdown "
    "check_key server_of"
).split():
    setattr(PooledClient, _name, _pooled(_name))
del _name
