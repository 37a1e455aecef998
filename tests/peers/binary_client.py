"""python-binary-memcached through what an application does. Usage: binary_client.py PORT."""

import sys

import bmemcached

client = bmemcached.Client(("127.0.0.1:" + sys.argv[1],))
client.flush_all()
assert client.set("key", "value") is True
assert client.get("key") == "value"
assert client.add("key", "other") is False
assert client.replace("none", "value") is False
value, unique = client.gets("key")
assert client.cas("key", "swapped", unique) is True
assert client.cas("key", "again", unique) is False
assert client.get("key") == "swapped"
assert client.set_multi({"a": 1, "b": "two", "c": b"3"}) == []
assert client.get_multi(["a", "b", "c", "none"]) == {"a": 1, "b": "two", "c": b"3"}
assert client.incr("n", 5, default=10) == 10
assert client.incr("n", 5) == 15
assert client.decr("n", 20) == 0
assert client.set("large", "x" * 900_000, compress_level=0) is True
assert len(client.get("large")) == 900_000
assert client.delete("key") is True and client.get("key") is None
assert client.delete_multi(["a", "b"]) is True and client.get_multi(["a", "b"]) == {}
(stats,) = client.stats().values()
assert int(stats["cmd_get"]) > 0 and stats["version"].startswith(b"1.6.")
client.disconnect_all()
print("python-binary-memcached: passed")
