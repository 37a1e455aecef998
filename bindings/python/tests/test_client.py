"""The client beside pymemcache's: the same calls on the same server have the same results."""

import faulthandler
import inspect
import os
import socket
import threading

import herdwick
import pymemcache.client.base
import pymemcache.client.hash
import pytest
from herdwick import exceptions
from pymemcache import serde


def outcome(call):
    """What a call returns, or the class of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)


class Number:
    """A value whose text is stored."""

    def __str__(self):
        return "17"

    def __eq__(self, other):
        return type(other) is Number


# Calls of a client, in their order: each as its name, arguments and named arguments.
CALLS = [
    ("set", ("k", b"value"), {}),
    ("get", ("k",), {}),
    ("get", (b"k",), {}),
    ("get", ("none",), {}),
    ("get", ("none", b"default"), {}),
    ("gets", ("none",), {}),
    ("gets", ("none", 1, 2), {}),
    ("set", ("k", "text"), {"noreply": False}),
    ("get", ("k",), {}),
    ("set", ("k", 17), {"noreply": False, "flags": 5}),
    ("get", ("k",), {}),
    ("set", ("k", Number()), {}),
    ("get", ("k",), {}),
    ("set", ("k", "\u0fff"), {}),
    ("add", ("k", b"2"), {"noreply": False}),
    ("add", ("k", b"2"), {}),
    ("replace", ("none", b"2"), {"noreply": False}),
    ("replace", ("k", b"3", 100), {"noreply": False}),
    ("append", ("k", b"4"), {"noreply": False}),
    ("append", ("none", b"4"), {"noreply": False}),
    ("prepend", ("k", b"5"), {"noreply": False}),
    ("prepend", ("none", b"5"), {"noreply": False}),
    ("get", ("k",), {}),
    ("incr", ("k", 1), {}),
    ("incr", ("k", 1), {"noreply": True}),
    ("decr", ("k", 2), {}),
    ("decr", ("k", 10**6), {}),
    ("incr", ("none", 1), {}),
    ("incr", ("k", "x"), {}),
    ("incr", ("k", 2**63), {}),
    ("incr", ("k", 2**63), {}),
    ("set", ("word", b"x"), {}),
    ("incr", ("word", 1), {}),
    ("cas", ("none", b"x", 1), {}),
    ("cas", ("k", b"x", "1"), {}),
    ("cas", ("k", b"x", b"1"), {}),
    ("cas", ("k", b"x", "one"), {}),
    ("cas", ("k", b"x", 1.5), {}),
    ("cas", ("k", b"x", -1), {}),
    ("touch", ("k", 100), {"noreply": False}),
    ("touch", ("k",), {}),
    ("touch", ("none", 100), {"noreply": False}),
    ("touch", ("k", "x"), {}),
    ("set", ("k", b"x", 1.5), {}),
    ("set", ("gone", b"x", -1), {}),
    ("get", ("gone",), {}),
    ("set", ("dated", b"x", 10**9), {}),
    ("get", ("dated",), {}),
    ("set", ("dated", b"x", 2 * 10**9), {}),
    ("get", ("dated",), {}),
    ("set_many", ({"a": b"1", b"b": b"2", "c": b"3"},), {}),
    ("set_many", ({},), {"noreply": False}),
    ("set_multi", ({"d": b"4"},), {"noreply": False}),
    ("get_many", (["a", b"b", "none", "c"],), {}),
    ("get_many", (("a", "d"),), {}),
    ("get_many", ([],), {}),
    ("get_multi", (["a", "a"],), {}),
    ("delete", ("a",), {}),
    ("delete", ("a",), {"noreply": False}),
    ("delete", ("b",), {"noreply": False}),
    ("delete_many", (["c", "none"],), {"noreply": False}),
    ("delete_multi", ([],), {}),
    ("get_many", (["a", "b", "c", "d"],), {}),
    ("get", ("a b",), {}),
    ("get", ("a\r\n",), {}),
    ("get", (" a",), {}),
    ("get", ("a\0",), {}),
    ("get", ("k" * 251,), {}),
    ("get", ("sch\u00f6n",), {}),
    ("set", ("large", b"x" * (2 << 20)), {"noreply": False}),
    ("get", ("large",), {}),
    ("set", ("empty", b""), {"noreply": False}),
    ("get", ("empty",), {}),
    ("__getitem__", ("k",), {}),
    ("__getitem__", ("none",), {}),
    ("__setitem__", ("item", b"x"), {}),
    ("__delitem__", ("item",), {}),
    ("get", ("item",), {}),
    ("version", (), {}),
    ("cache_memlimit", (64,), {}),
    ("cache_memlimit", ("x",), {}),
    ("raw_command", ("get k", b"END\r\n"), {}),
    ("raw_command", (b"get none", "END\r\n"), {}),
    ("raw_command", ("nothing",), {}),
    ("shutdown", (), {}),
    ("flush_all", (), {}),
    ("flush_all", (), {"noreply": False}),
    ("get", ("k",), {}),
    ("quit", (), {}),
    ("get", ("k",), {}),
    ("close", (), {}),
    ("get", ("k",), {}),
]


class Json:
    """A serde of the caller's."""

    def serialize(self, key, value):
        return (value, 1) if isinstance(value, bytes) else (str(value), 7)

    def deserialize(self, key, value, flags):
        return key, value, flags


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"key_prefix": b"prefix:"},
        {"key_prefix": "prefix:"},
        {"allow_unicode_keys": True},
        {"encoding": "utf-8"},
        {"default_noreply": False},
        {"serde": serde.pickle_serde},
        {"serde": serde.compressed_serde},
        {"serde": Json()},
        {"serializer": lambda key, value: (b"17", 3)},
        {"deserializer": lambda key, value, flags: (key, value, flags)},
        {"ignore_exc": True},
    ],
    ids=lambda arguments: "-".join(arguments) or "plain",
)
def test_calls_have_the_results_of_pymemcache(server, transport, arguments):
    named = dict(arguments)
    ours = herdwick.Client(server.address, transport=transport, **named)
    theirs = pymemcache.client.base.Client(server.address, **named)
    results = []
    for client in (theirs, ours):
        client.flush_all(noreply=False)
        results.append([outcome(lambda: getattr(client, name)(*a, **n)) for name, a, n in CALLS])
    for call, wanted, got in zip(CALLS, *results):
        assert got == wanted, call
        assert type(got) is type(wanted), call
    assert ours.transport == ("tcp" if transport == "tcp" else "shm")


def test_versions_are_those_of_the_server(server, transport):
    ours = herdwick.Client(server.address, transport=transport)
    theirs = pymemcache.client.base.Client(server.address)
    ours.set("v", b"1")
    assert ours.gets("v") == theirs.gets("v")
    assert ours.gets_many(["v", "none"]) == theirs.gets_many(["v", "none"])
    _, version = ours.gets("v")
    assert theirs.cas("v", b"2", version) is True
    assert ours.cas("v", b"3", version) is False
    assert ours.stats()[b"pid"] == theirs.stats()[b"pid"]
    assert ours.stats("settings").keys() == theirs.stats("settings").keys()


@pytest.mark.parametrize("prefix", [b"", b"pre:"], ids=["", "prefix"])
def test_values_of_any_size_are_read_in_the_order_of_their_keys(server, transport, prefix):
    ours = herdwick.Client(server.address, transport=transport, key_prefix=prefix)
    theirs = pymemcache.client.base.Client(server.address, key_prefix=prefix)
    sizes = [0, 1, 32, 1000, 4095, 4096, 4097, 100_000, None]
    # More than are in flight at once.
    keys = ["of-many:%d" % number for number in range(300)]
    for number, key in enumerate(keys):
        size = sizes[number % len(sizes)]
        if size is not None:
            theirs.set(key, bytes([number % 256]) * size, flags=number, noreply=False)
    keys[::7] = [key.encode() for key in keys[::7]]
    wanted, got = theirs.gets_many(keys), ours.gets_many(keys)
    assert got == wanted and len(got) == 267
    assert list(got) == [key for key in keys if key in wanted]
    assert ours.get_many(iter(keys)) == theirs.get_many(keys)
    for bad in ("a b", "x" * 251, b"\x00", "\x7f", *([] if prefix else [""])):
        with pytest.raises(herdwick.MemcacheIllegalInputError):
            ours.get_many(["of-many:1", bad])
    theirs.delete_many(keys, noreply=False)


def test_failed_call_raises_with_noreply_too(server, transport):
    client = herdwick.Client(server.address, transport=transport)
    client.set("word", b"x")
    with pytest.raises(herdwick.MemcacheClientError):
        client.incr("word", 1, noreply=True)
    with pytest.raises(herdwick.MemcacheServerError):
        client.set("large", b"x" * (2 << 20), noreply=True)
    assert client.get("word") == b"x" and client.get("large") is None


def test_interface_is_that_of_pymemcache():
    for ours, theirs, missing in (
        (herdwick.Client, pymemcache.client.base.Client, set()),
        (herdwick.PooledClient, pymemcache.client.base.PooledClient, {"check_key", "client_class"}),
        # What changes the servers of a ring that is in use.
        (herdwick.HashClient, pymemcache.client.hash.HashClient, {"add_server", "remove_server", "client_class"}),
    ):
        public = {name for name in dir(theirs) if not name.startswith("_")}
        assert public - missing <= set(dir(ours)), public - missing - set(dir(ours))
    wanted = inspect.signature(pymemcache.client.base.Client.__init__).parameters
    names = [name for name in inspect.signature(herdwick.Client.__init__).parameters]
    assert names[: len(wanted)] == list(wanted)


def test_exceptions_are_those_of_pymemcache():
    import pymemcache.exceptions

    for name in exceptions.__all__:
        theirs = getattr(pymemcache.exceptions, name, None)
        assert theirs is None or getattr(herdwick, name) is theirs


def test_server_that_is_away_raises_what_sockets_raise(new_server):
    server = new_server()
    client = herdwick.Client(server.address, timeout=20)
    lenient = herdwick.Client(server.address, timeout=20, ignore_exc=True)
    assert client.set("k", b"1") and lenient.get("k") == b"1"
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        client.get("k")
    assert lenient.get("k", b"default") == b"default" and lenient.get_many(["k"]) == {}
    assert lenient.gets("k") == (None, None)
    server.start()
    # A client does not dial for up to a second after a failure.
    while client.get("k") is not None if outcome(lambda: client.get("k")) is None else True:
        pass
    client.close()
    assert client.get("k") is None
    with pytest.raises(ConnectionError):
        herdwick.Client("nowhere.invalid:1", timeout=20).get("k")
    with pytest.raises(FileNotFoundError):
        herdwick.Client("/no/such/socket").get("k")


def listener():
    """A server that accepts, and does not answer."""
    silent = socket.create_server(("127.0.0.1", 0))
    return silent, silent.getsockname()


def test_other_threads_run_while_a_call_waits():
    silent, address = listener()
    # Without a hello: the first bytes are the request.
    client = herdwick.Client(address, transport="tcp", timeout=60)

    def answer():
        connection, _ = silent.accept()
        assert connection.recv(100) == b"gets k\r\n"
        # Python runs here while `get` waits: if it held the GIL, nothing would answer.
        connection.sendall(b"VALUE k 0 5 1\r\nvalue\r\nEND\r\n")
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    assert client.get("k") == b"value"
    thread.join()
    silent.close()


def test_deadline_ends_a_call():
    silent, address = listener()
    client = herdwick.Client(address, transport="tcp", timeout=0.05)
    with pytest.raises(socket.timeout):
        client.get("k")
    with pytest.raises(herdwick.MemcacheUnknownOutcomeError) as caught:
        client.set("k", b"1")
    assert isinstance(caught.value, (socket.timeout, herdwick.MemcacheUnexpectedCloseError))
    silent.close()


@pytest.mark.parametrize("limit", ["timeout", "connect_timeout"])
def test_one_limit_of_a_client_of_several_servers_is_enough(limit):
    silent, address = listener()
    client = herdwick.HashClient([address, address[:1] + (1,)], transport="tcp", **{limit: 0.05})
    away = "127.0.0.1:%d" % address[1]
    key = next(key for key in map(str, range(100)) if client.server_of(key) == away)
    with pytest.raises(socket.timeout):
        client.get(key)
    silent.close()


def test_threads_share_a_client(server, transport):
    client = herdwick.Client(server.address, transport=transport)
    pooled = herdwick.PooledClient(server.address, transport=transport)
    client.set("sum", b"0")
    client.set("pooled", b"0")

    def count():
        for _ in range(500):
            client.incr("sum", 1)
            pooled.incr("pooled", 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("sum") == b"2000" and pooled.get("pooled") == b"2000"
    pooled.close()
    few = herdwick.PooledClient(server.address, max_pool_size=1)
    assert few.get("sum") == b"2000" and few.get("sum") == b"2000"


def test_subclasses_may_have_another_constructor(server):
    class Prefixed(herdwick.Client):
        def __init__(self, server, name):
            super().__init__(server, key_prefix=name)
            self.name = name

    client = Prefixed(server.address, b"sub:")
    client.set("k", b"1")
    assert herdwick.Client(server.address).get("sub:k") == b"1"
    with pytest.raises(RuntimeError):
        herdwick.Client.__new__(herdwick.Client).get("k")
    with herdwick.Client(server.address) as inside:
        assert inside.get("sub:k") == b"1"


def test_keys_belong_to_the_servers_of_pymemcache(new_server, transport):
    servers = [new_server() for _ in range(3)]
    addresses = [server.address for server in servers]
    ours = herdwick.HashClient(addresses, transport=transport)
    theirs = pymemcache.client.hash.HashClient(addresses)
    keys = ["key-%d" % number for number in range(300)]
    ours.set_many({key: key.encode() for key in keys[:150]})
    theirs.set_many({key: key.encode() for key in keys[150:]}, noreply=False)
    wanted = {key: key.encode() for key in keys}
    assert ours.get_many(keys) == wanted == theirs.get_many(keys)
    assert len({ours.server_of(key) for key in keys}) == 3
    servers[0].stop()
    away = "127.0.0.1:%d" % servers[0].port
    for key in keys:
        if ours.server_of(key) != away:
            assert ours.get(key) == wanted[key]
    lenient = herdwick.HashClient(addresses, ignore_exc=True, retry_attempts=0)
    found = [lenient.get(key) for key in keys]
    assert sum(value is None for value in found) == sum(
        herdwick.HashClient(addresses).server_of(key) == away for key in keys
    )
    # The server has left after the first failure: its keys have another.
    assert all(lenient.server_of(key) != away for key in keys)


def test_several_servers_with_errors_ignored_lose_the_keys_of_one_alone(new_server, transport):
    servers = [new_server() for _ in range(2)]
    addresses = [server.address for server in servers]
    strict = herdwick.HashClient(addresses, transport=transport)
    lenient = herdwick.HashClient(
        addresses, transport=transport, ignore_exc=True, retry_attempts=10**6, default_noreply=False
    )
    keys = ["key-%d" % number for number in range(100)]
    assert lenient.set_many({key: b"1" for key in keys}) == []
    servers[0].stop()
    away = "127.0.0.1:%d" % servers[0].port
    lost = [key for key in keys if strict.server_of(key) == away]
    kept = {key: b"1" for key in keys if key not in lost}
    assert lost and kept
    assert lenient.get_many(keys) == kept
    assert {key: value for key, (value, _) in lenient.gets_many(keys).items()} == kept
    assert lenient.set_many({key: b"1" for key in keys}) == lost
    assert lenient.set(lost[0], b"1") is False and lenient.add(lost[0], b"1") is False
    assert lenient.delete(lost[0]) is False and lenient.incr(lost[0], 1) is False
    assert lenient.delete_many(keys) is True and lenient.get_many(keys) == {}
    with pytest.raises(herdwick.MemcacheIllegalInputError):
        lenient.set("a b", b"1")
    with pytest.raises((OSError, herdwick.MemcacheUnexpectedCloseError)):
        strict.get_many(keys)
    alone = herdwick.Client(servers[0].address, ignore_exc=True)
    assert alone.stats() == {}


class Broken:
    """A serde that cannot read some values."""

    def serialize(self, key, value):
        return value, 0

    def deserialize(self, key, value, flags):
        if value == b"broken":
            raise ValueError(value)
        return value


def test_values_that_cannot_be_read_are_misses_where_errors_are_ignored(server, transport):
    lenient = herdwick.Client(server.address, transport=transport, serde=Broken(), ignore_exc=True)
    strict = herdwick.Client(server.address, transport=transport, serde=Broken())
    lenient.set_many({"bad": b"broken", "good": b"1"})
    assert lenient.get("bad") is None and lenient.get("bad", 3) == 3
    assert lenient.gets("bad", 1, 2) == (1, 2)
    assert lenient.get_many(["bad", "good"]) == {"good": b"1"}
    assert list(lenient.gets_many(["bad", "good"])) == ["good"]
    for call in (strict.get, strict.gets, lambda key: strict.get_many([key])):
        with pytest.raises(ValueError):
            call("bad")


def test_collections_may_change_while_a_call_uses_them(server, transport):
    values = {"a": b"1", "b": b"2"}
    keys = ["a", "b"]

    class Changing(Broken):
        def serialize(self, key, value):
            values.pop("b", None)
            return value, 0

        def deserialize(self, key, value, flags):
            keys.clear()
            return value

    client = herdwick.Client(server.address, transport=transport, serde=Changing())
    assert client.set_many(values) == []
    assert client.get_many(keys) == {"a": b"1", "b": b"2"}

    class Pairs:
        def items(self):
            return iter([("c", b"3")])

    assert client.set_many(Pairs()) == [] and client.get("c") == b"3"


def test_arguments_of_pymemcache_have_their_places():
    wanted = list(inspect.signature(pymemcache.client.hash.HashClient.__init__).parameters)
    ours = list(inspect.signature(herdwick.HashClient.__init__).parameters)
    assert ours[: len(wanted)] == wanted
    hasher = pymemcache.client.rendezvous.RendezvousHash
    assert herdwick.HashClient(["a", "b"], hasher).server_of("k")
    for wrong in ({"hasher": dict}, {"use_pooling": True}, {"retry_timeout": 5}, {"max_pool_size": 2}):
        with pytest.raises(ValueError):
            herdwick.HashClient(["a", "b"], **wrong)


def test_transport_is_none_without_a_connection(server):
    for client in (herdwick.Client("localhost:1"), herdwick.PooledClient("localhost:1")):
        assert client.transport is None and client.fallback is None
    pooled = herdwick.PooledClient(server.address, transport="tcp")
    pooled.get("k")
    assert pooled.transport == "tcp" and pooled.check_key("k", b"p:") == b"p:k"
    pooled.close()
    assert pooled.transport is None


def test_raw_command_ends_at_the_first_end(server):
    client = herdwick.Client(server.address)
    client.set("raw", b"1\r\n2")
    assert client.raw_command("get raw", "\r\n1") == b"VALUE raw 0 4"


def test_server_of_a_key_lets_a_call_end_that_holds_the_client(server):
    silent, address = listener()
    client = herdwick.HashClient([address, server.address], transport="tcp")
    away = "127.0.0.1:%d" % address[1]
    key = next(key for key in map(str, range(100)) if client.server_of(key) == away)
    accepted, asking = threading.Event(), threading.Event()
    found = []

    def answer():
        connection, _ = silent.accept()
        assert connection.recv(100)
        accepted.set()
        # The main thread goes on into its call, which is to let this one run.
        asking.wait()
        connection.sendall(b"END\r\n")
        connection.close()

    threads = [threading.Thread(target=answer), threading.Thread(target=lambda: found.append(client.get(key)))]
    for thread in threads:
        thread.start()
    accepted.wait()
    # No thread of Python's could end a test in which none can run.
    faulthandler.dump_traceback_later(60, exit=True)
    asking.set()
    assert client.server_of(key) == away
    faulthandler.cancel_dump_traceback_later()
    for thread in threads:
        thread.join()
    assert found == [None]
    silent.close()


def test_child_process_does_not_wait_for_calls_of_its_parent(server):
    silent, address = listener()
    client = herdwick.Client(address, transport="tcp")
    pool = herdwick.PooledClient(server.address, max_pool_size=1)
    thread = threading.Thread(target=lambda: outcome(lambda: client.get("k")))
    thread.start()
    connection, _ = silent.accept()
    assert connection.recv(100)
    # The thread is in its call, which holds the client.
    with pool._lock:
        child = os.fork()
        if child == 0:
            threading.Timer(60, os._exit, (2,)).start()
            done = client.transport is None and pool.set("fork", b"1", noreply=False)
            os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    connection.close()
    silent.close()
    thread.join()


def test_child_process_has_a_connection_of_its_own(server, transport):
    client = herdwick.Client(server.address, transport=transport)
    client.set("fork", b"parent")
    child = os.fork()
    if child == 0:
        done = client.get("fork") == b"parent" and client.set("fork", b"child", noreply=False)
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.get("fork") == b"child"


@pytest.mark.parametrize(
    "arguments",
    [
        {"transport": "pigeon"},
        {"timeout": -1},
        {"timeout": 0},
        {"login": "user without password"},
        {"tls": {"authority": "x"}},
        {"tls": {"authorities": "/no/such/file"}},
        {"tls_context": object()},
        {"socket_module": object()},
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(arguments):
    with pytest.raises(ValueError):
        herdwick.Client("localhost", **arguments)
    with pytest.raises(ValueError):
        herdwick.Client("http://localhost")
    with pytest.raises(ValueError):
        herdwick.HashClient(["a", "a"])
