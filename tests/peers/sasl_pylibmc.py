"""pylibmc, which is libmemcached with Cyrus SASL: it takes the strongest mechanism that both have,
SCRAM-SHA-256 where Cyrus' modules are installed. Usage: sasl_pylibmc.py PORT USER PASSWORD."""

import sys

import pylibmc

port, user, password = sys.argv[1:]
server = ["127.0.0.1:" + port]
assert pylibmc.support_sasl

client = pylibmc.Client(server, binary=True, username=user, password=password)
assert client.set("key", "value") is True
assert client.get("key") == "value"
assert client.get_multi(["key", "none"]) == {"key": "value"}
assert client.delete("key") is True and client.get("key") is None

for login in ({"username": user, "password": password + "x"}, {}):
    try:
        pylibmc.Client(server, binary=True, **login).set("key", "value")
        raise SystemExit(f"{login} was not refused")
    except pylibmc.Error as error:
        print(f"refused: {error!r}")
print("pylibmc, SASL: passed")
