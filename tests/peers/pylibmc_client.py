"""pylibmc, on libmemcached, through what an application does, over text and binary.
Usage: pylibmc_client.py PORT."""

import sys
import time

import pylibmc

address = "127.0.0.1:" + sys.argv[1]


def refused(call):
    """Over text libmemcached answers False, over binary it has an error for some of these."""
    try:
        return call() is False
    except (pylibmc.NotFound, pylibmc.DataExists):
        return True


def check(client):
    client.flush_all()
    assert client.set("key", "value", time=600) is True
    assert client.get("key") == "value"
    assert refused(lambda: client.add("key", "other"))
    assert refused(lambda: client.replace("none", "value"))
    # libmemcached refuses to join values whose type it has put in the flags, so these are bytes.
    assert client.set("joined", b"b") and client.append("joined", b"c") and client.prepend("joined", b"a")
    assert client.get("joined") == b"abc"
    # Flags carry the type.
    values = {"int": 7, "str": "\N{SNOWMAN}", "bytes": b"\0\r\n", "list": [1, "two", None], "no": False}
    assert client.set_multi(values) == []
    assert client.get_multi([*values, "none"]) == values
    assert client.delete_multi(list(values)) and client.get_multi(list(values)) == {}
    value, unique = client.gets("key")
    assert value == "value"
    assert client.cas("key", "swapped", unique) is True
    assert client.cas("key", "again", unique) is False and client.get("key") == "swapped"
    client.set("n", 10)
    assert client.incr("n", 5) == 15 and client.decr("n", 20) == 0
    try:
        client.incr("none", 1)
        raise AssertionError("counted what is not there")
    except pylibmc.NotFound:
        pass
    large = b"x" * 1_000_000
    assert client.set("large", large) and client.get("large") == large
    compressed = "squeezed " * 100_000
    assert client.set("compressed", compressed, min_compress_len=1000)
    assert client.get("compressed") == compressed
    assert client.touch("key", 60) is True
    assert client.set("short", "lived", time=1)
    end = time.monotonic() + 20
    while client.get("short") is not None:
        assert time.monotonic() < end
    assert client.delete("key") is True and client.get("key") is None
    assert refused(lambda: client.delete("key"))
    ((_, stats),) = client.get_stats()
    assert (stats["version"], stats["limit_maxbytes"]) == (b"1.6.45", b"67108864"), stats
    many = {f"many{n}": n for n in range(1000)}
    assert client.set_multi(many) == [] and client.get_multi(list(many)) == many
    client.disconnect_all()


for binary in (False, True):
    behaviors = {"cas": True, "tcp_nodelay": True}
    check(pylibmc.Client([address], binary=binary, behaviors=behaviors))
print("pylibmc: passed")
