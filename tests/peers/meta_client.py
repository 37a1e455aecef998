"""meta-memcache through what an application does with leases. Usage: meta_client.py PORT."""

import sys

from meta_memcache import (
    CacheClient,
    Key,
    LeasePolicy,
    ServerAddress,
    StalePolicy,
)
from meta_memcache.configuration import connection_pool_factory_builder

address = ServerAddress("127.0.0.1", int(sys.argv[1]))
client = CacheClient.cache_client_from_servers(
    servers=[address], connection_pool_factory_fn=connection_pool_factory_builder()
)
assert client.set("key", "value", ttl=600)
assert client.get("key") == "value"
value, unique = client.get_cas("key")
assert client.set("key", "swapped", ttl=600, cas_token=unique)
assert not client.set("key", "again", ttl=600, cas_token=unique)
assert client.touch("key", ttl=60)
unprintable = Key("\N{SNOWMAN} key")
assert client.set(unprintable, "binary key", ttl=600)
assert client.get(unprintable) == "binary key"
found = client.multi_get(["key", unprintable, "none"])
assert found == {Key("key"): "swapped", unprintable: "binary key", Key("none"): None}, found
assert client.delta_initialize("counter", 5, initial_value=10, initial_ttl=60)
assert client.delta_and_get("counter", 5) == 15
# Of two readers of an item marked stale, the first is to recache it and sees nothing.
stale = StalePolicy(mark_stale_on_deletion_ttl=30)
assert client.invalidate("key", stale_policy=stale)
assert client.get("key") is None
assert client.get("key") == "swapped"
assert client.set("key", "fresh", ttl=600) and client.get("key") == "fresh"
# Of two readers of what there is not, the first holds the lease.
lease = LeasePolicy(ttl=30, miss_retries=1, miss_retry_wait=0.0)
assert client.get_or_lease("leased", lease_policy=lease) is None
assert client.set("leased", "made", ttl=600)
assert client.get_or_lease("leased", lease_policy=lease) == "made"
assert client.delete("key") and client.get("key") is None
print("meta-memcache: passed")
