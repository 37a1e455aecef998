"""aiomcache through what an application does, many at a time. Usage: aiomcache_client.py PORT."""

import asyncio
import sys

import aiomcache


async def main(port):
    client = aiomcache.Client("127.0.0.1", port, pool_size=4)
    assert await client.flush_all() is None
    assert (await client.version()) == b"1.6.45"
    assert await client.set(b"key", b"value", exptime=600) is True
    assert await client.get(b"key") == b"value"
    assert await client.get(b"none", b"default") == b"default"
    assert await client.add(b"key", b"other") is False
    assert await client.replace(b"none", b"value") is False
    assert await client.append(b"key", b"!") and await client.prepend(b"key", b">")
    value, unique = await client.gets(b"key")
    assert value == b">value!"
    assert await client.cas(b"key", b"swapped", unique) is True
    assert await client.cas(b"key", b"again", unique) is False
    assert await client.multi_get(b"key", b"none") == (b"swapped", None)
    assert await client.set(b"n", b"10")
    assert await client.incr(b"n", 5) == 15 and await client.decr(b"n", 20) == 0
    try:
        await client.incr(b"none")
        raise AssertionError("counted what is not there")
    except aiomcache.ClientException as error:
        assert "NOT_FOUND" in str(error), error
    assert await client.touch(b"key", 60) is True and await client.touch(b"none", 60) is False
    large = bytes(range(256)) * 4000
    assert await client.set(b"large", large) and await client.get(b"large") == large
    try:
        await client.set(b"too_large", b"x" * (1 << 20))
        raise AssertionError("stored what is beyond -I")
    except aiomcache.ClientException as error:
        assert "too large" in str(error), error

    async def work(n):
        key = b"at once %d" % n
        key = key.replace(b" ", b"_")
        assert await client.set(key, b"%d" % n)
        assert await client.get(key) == b"%d" % n
        assert await client.delete(key) is True
        assert await client.get(key) is None

    await asyncio.gather(*(work(n) for n in range(500)))
    assert await client.set(b"short", b"lived", exptime=1)
    async with asyncio.timeout(20):
        while await client.get(b"short") is not None:
            pass
    stats = await client.stats()
    assert stats[b"version"] == b"1.6.45" and int(stats[b"cmd_set"]) > 500
    assert await client.delete(b"key") is True and await client.delete(b"key") is False
    await client.close()

    # Flags, by the client that hands them to its caller.
    async def flags(value):
        return b"%d" % value, 77

    async def value(bytes_, flags):
        assert flags == 77
        return int(bytes_)

    client = aiomcache.FlagClient("127.0.0.1", port, set_flag_handler=flags, get_flag_handler=value)
    assert await client.set(b"flagged", 123) and await client.get(b"flagged") == 123
    await client.close()


asyncio.run(main(int(sys.argv[1])))
print("aiomcache: passed")
