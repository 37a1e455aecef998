"""python-binary-memcached by SASL PLAIN. Usage: sasl_bmemcached.py PORT USER PASSWORD."""

import sys

import bmemcached
from bmemcached.exceptions import AuthenticationNotSupported, InvalidCredentials, MemcachedException

port, user, password = sys.argv[1:]
server = ("127.0.0.1:" + port,)

client = bmemcached.Client(server, user, password)
assert client.set("key", "value") is True
assert client.get("key") == "value"
assert client.delete("key") is True and client.get("key") is None
client.disconnect_all()

for name, word in ((user, password + "x"), ("unknown", password)):
    try:
        wrong = bmemcached.Client(server, name, word)
        assert wrong.set("key", "value") is not True
        raise SystemExit(f"{name} was not refused")
    except (AuthenticationNotSupported, InvalidCredentials, MemcachedException) as error:
        print(f"refused: {error!r}")
print("python-binary-memcached, SASL PLAIN: passed")
