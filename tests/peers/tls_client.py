"""pymemcache in TLS. Usage: tls_client.py PORT CA CLIENT: the server's authority, and a file with a
client's certificate and key."""

import ssl
import sys

from pymemcache.client.base import Client

port, authority, shown = int(sys.argv[1]), sys.argv[2], sys.argv[3]
context = ssl.create_default_context(cafile=authority)

try:
    Client(("localhost", port), tls_context=context, timeout=20).version()
    raise SystemExit("served without a certificate")
except OSError:
    pass

context.load_cert_chain(shown)
client = Client(("localhost", port), tls_context=context, timeout=20)
large = b"v" * 1_000_000
assert client.set("large", large) and client.get("large") == large
assert client.set_many({f"key{i}": str(i) for i in range(100)}) == []
assert len(client.get_many([f"key{i}" for i in range(100)])) == 100
assert client.incr("key1", 41) == 42
assert client.stats()[b"ssl_handshake_errors"] == 1
client.quit()
