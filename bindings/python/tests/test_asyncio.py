"""The client for asyncio: many tasks on one connection, cancelled and disconnected at any time."""

import asyncio
import socket

import herdwick
import pytest
from herdwick.asyncio import AsyncClient
from pymemcache import serde


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_calls_have_the_results_of_the_other_client(server, transport):
    other = herdwick.Client(server.address, serde=serde.pickle_serde)
    other.flush_all()

    async def calls():
        async with AsyncClient(
            server.address, transport=transport, serde=serde.pickle_serde, key_prefix=b"a:"
        ) as client:
            assert client.transport == ("tcp" if transport == "tcp" else "shm")
            assert await client.get("k") is None and await client.get("k", 3) == 3
            assert await client.gets("k") == (None, None)
            assert await client.set("k", {"one": 1}) is True
            assert other.get("a:k") == {"one": 1}
            value, version = await client.gets("k")
            assert (value, version) == other.gets("a:k")
            assert await client.cas("k", 2, version) is True
            assert await client.cas("k", 3, version) is False
            assert await client.cas("none", 3, version) is None
            assert await client.add("k", 3) is False and await client.add("new", 3) is True
            assert await client.replace("none", 3) is False and await client.replace("k", 4) is True
            assert await client.append("none", b"x") is False
            assert await client.prepend("k", b"1") is True
            assert await client.get("k") == 14
            assert await client.incr("k", 1) == 15 and await client.decr("k", 100) == 0
            assert await client.incr("none", 1) is None
            assert await client.touch("k", 100) is True and await client.touch("none") is False
            assert await client.set_many({"x": 1, "y": "2"}) == []
            assert await client.get_many(["x", "y", "none"]) == {"x": 1, "y": "2"}
            assert await client.delete("x") is True and await client.delete("x") is False
            assert await client.delete_many(["y", "none"]) is True
            large = bytes(range(256)) * 2000
            assert await client.set("large", large) is True and await client.get("large") == large
            with pytest.raises(herdwick.MemcacheServerError):
                await client.set("large", bytes(2 << 20))
            with pytest.raises(herdwick.MemcacheClientError):
                await client.incr("new", "x")
            with pytest.raises(herdwick.MemcacheIllegalInputError):
                await client.get("a b")

    run(calls())


def test_many_tasks_share_a_connection(server, transport):
    async def calls():
        async with AsyncClient(server.address, transport=transport, window=16) as client:
            await client.set("sum", b"0")

            async def one(number):
                key = "task-%d" % number
                await client.set(key, key.encode())
                assert await client.get(key) == key.encode()
                return await client.incr("sum", 1)

            sums = await asyncio.gather(*(one(number) for number in range(2000)))
            assert sorted(sums) == list(range(1, 2001))

    run(calls())


def test_cancelled_calls_leave_the_connection_usable(server, transport):
    async def calls():
        async with AsyncClient(server.address, transport=transport, window=4) as client:
            for round in range(50):
                tasks = [asyncio.ensure_future(client.set("c%d" % n, b"x")) for n in range(200)]
                for _ in range(round % 5):
                    await asyncio.sleep(0)
                for task in tasks[:: 1 + round % 3]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                key = "after-%d" % round
                assert await client.set(key, b"1") and await client.get(key) == b"1"

    run(calls())


def test_call_that_fails_while_others_wait_gives_its_turn_away(server, transport):
    async def calls():
        async with AsyncClient(server.address, transport=transport, window=1) as client:
            for wrong in (
                client.set("k", b"1", expire="soon"),
                client.cas("k", b"1", "one"),
                client.incr("k", -1),
                client.touch("k", 1.5),
            ):
                good = [client.set("k%d" % n, b"1") for n in range(4)]
                done = await asyncio.gather(*good[:2], wrong, *good[2:], return_exceptions=True)
                assert isinstance(done.pop(2), herdwick.MemcacheIllegalInputError)
                assert done == [True] * 4

    run(calls())


def test_server_that_leaves_ends_all_that_wait_and_all_in_flight(new_server, transport):
    server = new_server()

    async def calls():
        async with AsyncClient(server.address, transport=transport, window=1) as client:
            await client.set("k", b"1")
            tasks = [asyncio.ensure_future(client.get("k")) for _ in range(20)]
            tasks += [asyncio.ensure_future(client.set("k", b"2")) for _ in range(20)]
            while not client._pending:
                await asyncio.sleep(0)
            server.stop()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            errors = (OSError, herdwick.MemcacheUnexpectedCloseError)
            assert all(one in (b"1", b"2", True) or isinstance(one, errors) for one in done)
            assert not client._pending and not client._waiting

    run(calls())


def test_server_that_returns_is_found_again(new_server, transport):
    server = new_server()

    async def calls():
        async with AsyncClient(server.address, transport=transport, timeout=20) as client:
            await client.set("k", b"1")
            server.stop()
            with pytest.raises(OSError):
                await client.get("k")
            # A client does not dial for up to a second after a failure.
            with pytest.raises(OSError):
                await client.get("k")
            server.start()
            while True:
                try:
                    assert await client.get("k") is None
                    break
                except OSError:
                    await asyncio.sleep(0)
            assert await client.set("k", b"2") and await client.get("k") == b"2"

    run(calls())


def test_deadline_ends_a_call():
    silent = socket.create_server(("127.0.0.1", 0))

    async def calls():
        client = AsyncClient(silent.getsockname(), transport="tcp", timeout=0.05)
        with pytest.raises(socket.timeout):
            await client.get("k")
        with pytest.raises(herdwick.MemcacheUnknownOutcomeError):
            await client.set("k", b"1")
        await client.close()

    run(calls())
    silent.close()


def test_close_ends_what_is_in_flight():
    silent = socket.create_server(("127.0.0.1", 0))

    async def calls():
        client = AsyncClient(silent.getsockname(), transport="tcp")
        tasks = [asyncio.ensure_future(client.set("k", b"1")) for _ in range(3)]
        while not client._pending:
            await asyncio.sleep(0)
        await client.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, herdwick.MemcacheUnknownOutcomeError) for error in done)

    run(calls())
    silent.close()


def test_waiting_for_room_counts_as_time_of_the_call(server, transport):
    async def calls():
        async with AsyncClient(server.address, transport=transport, timeout=0.05) as client:
            # A request for which there is never room.
            with pytest.raises(socket.timeout, match="no answer within"):
                await client._ask(lambda session: None)
            assert not client._waiting or all(one.done() for one in client._waiting)

    run(calls())


def test_close_ends_reads_and_calls_that_wait_and_does_not_reconnect():
    silent = socket.create_server(("127.0.0.1", 0))

    async def calls():
        client = AsyncClient(silent.getsockname(), transport="tcp", window=1)
        tasks = [asyncio.ensure_future(client.get("k"))]
        tasks += [asyncio.ensure_future(client._ask(lambda session: None)) for _ in range(3)]
        while not client._pending or not client._waiting:
            await asyncio.sleep(0)
        await client.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(type(error) is herdwick.MemcacheUnexpectedCloseError for error in done)
        assert client.transport is None and client._dialling is None

    run(calls())
    silent.close()


def test_client_may_go_to_another_event_loop_when_it_is_closed(server, transport):
    client = AsyncClient(server.address, transport=transport)

    async def calls():
        task = asyncio.ensure_future(client.set("k", b"1"))
        while not client._pending:
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(herdwick.MemcacheUnknownOutcomeError):
            await task
        # What was submitted last is still to be sent when the loop ends.
        await client._connected()
        client._schedule()
        await client.close()

    for _ in range(2):
        run(calls())
