"""For pytest: pymemcache's clients are replaced by herdwick's, so that its suite tests those."""

import herdwick
import pymemcache.client.base
import pymemcache.client.hash

pymemcache.client.base.Client = herdwick.Client
pymemcache.client.base.PooledClient = herdwick.PooledClient
pymemcache.client.hash.HashClient = herdwick.HashClient
