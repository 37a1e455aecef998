"""The client for asyncio: tasks share one connection, and what they ask for is sent together.

>>> from herdwick.asyncio import AsyncClient
>>> async with AsyncClient("localhost:11211") as client:      # doctest: +SKIP
...     await client.set("greeting", b"hello")

There is no thread beside the event loop's, but while it connects. A call that is cancelled before it was
sent has not been made; after that it may be made, as one whose connection is lost.
"""

import asyncio
import collections
import functools

from herdwick import _herdwick
from herdwick._options import choose_serde, options, prefix_bytes, server_name
from herdwick.exceptions import (
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownOutcomeError,
)

__all__ = ["AsyncClient"]

# Sessions that one read may use: one that was stale, one that breaks meanwhile, and one more.
_SESSIONS_PER_READ = 3


class AsyncClient:
    """A client of one server for the event loop that makes its first call.

    The arguments are those of `herdwick.Client`; all values are awaited.
    """

    def __init__(
        self,
        server,
        serde=None,
        serializer=None,
        deserializer=None,
        connect_timeout=None,
        timeout=None,
        key_prefix=b"",
        allow_unicode_keys=False,
        encoding="ascii",
        *,
        transport="auto",
        window=64,
        login=None,
        tls=None,
    ):
        self.server = server
        self._address = server_name(server)
        self._options = options(timeout, connect_timeout, transport, window, login, None, tls)
        self._serde = choose_serde(serde, serializer, deserializer)
        self._prefix = prefix_bytes(key_prefix)
        self._unicode = allow_unicode_keys
        self._encoding = encoding
        self._session = None
        self._dialling = None
        self._loop = None
        self._pending = {}
        self._waiting = collections.deque()
        self._scheduled = False
        self._timer = None

    # Connecting.

    async def _connected(self):
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._session is not None:
                raise RuntimeError("the client belongs to another event loop")
            self._loop = loop
        while self._session is None:
            if self._dialling is None:
                self._dialling = loop.create_task(self._dial())
            # Shielded: one task's cancellation does not end the dialling for the others.
            await asyncio.shield(self._dialling)

    async def _dial(self):
        try:
            dial = functools.partial(_herdwick._Session, self._address, self._options)
            session = await self._loop.run_in_executor(None, dial)
            self._session = session
            self._loop.add_reader(session.fileno(), self._step)
        finally:
            self._dialling = None

    def _lose(self):
        session, self._session = self._session, None
        if session is not None:
            self._loop.remove_reader(session.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self):
        """Closes the connection; calls without an answer end as if it were lost. The next call opens another."""
        if self._dialling is not None:
            await asyncio.wait([self._dialling])
        if self._session is None:
            return
        self._lose()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(MemcacheUnknownOutcomeError("the client was closed"))
        self._wake(len(self._waiting))

    quit = close

    async def __aenter__(self):
        await self._connected()
        return self

    async def __aexit__(self, *error):
        await self.close()

    @property
    def transport(self):
        """The transport; `None` without a connection."""
        return self._session.transport[0] if self._session is not None else None

    @property
    def fallback(self):
        """Why the transport is not a better one; `None` if it is the best."""
        return self._session.transport[1] if self._session is not None else None

    # Requests in flight.

    def _schedule(self):
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self):
        self._scheduled = False
        self._step()

    def _step(self):
        """Sends what was submitted, delivers what has arrived, and sees to the next step."""
        session = self._session
        if session is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        answers = session.poll()
        for ticket, code, result, error in answers:
            answer = self._pending.pop(ticket)
            if answer.done():
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result((code, result))
        if session.broken() is not None:
            self._lose()
            self._wake(len(self._waiting))
            return
        self._wake(len(answers))
        longest = session.arm()
        if longest == 0:
            self._schedule()
        elif longest is not None:
            self._timer = self._loop.call_later(longest, self._step)

    def _wake(self, count):
        """Lets `count` of the waiting calls try again, or one if nothing is in flight."""
        if not self._pending:
            count = max(count, 1)
        while count > 0 and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    async def _room(self, first):
        """Waits until a request may be accepted; `first`: it was accepted too late once, and keeps its place."""
        waiting = self._loop.create_future()
        (self._waiting.appendleft if first else self._waiting.append)(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._wake(1)
            raise

    async def _submit(self, submit):
        """Submits a request as soon as it is accepted, and returns its answer's future."""
        was_woken = False
        while True:
            await self._connected()
            if not self._pending and self._session.check():
                # Its server has gone since the last answer: nothing is sent there.
                self._lose()
                continue
            if was_woken or not self._waiting:
                ticket = submit(self._session)
                if ticket is not None:
                    answer = self._loop.create_future()
                    self._pending[ticket] = answer
                    self._schedule()
                    return answer
                # What is in flight has to be sent before there is room.
                self._schedule()
            await self._room(was_woken)
            was_woken = True

    async def _ask(self, submit):
        try:
            answer = await self._submit(submit)
        except MemcacheUnexpectedCloseError:
            # The session was found to be broken before anything was submitted.
            self._lose()
            answer = await self._submit(submit)
        return await answer

    async def _read(self, key):
        for attempt in range(_SESSIONS_PER_READ):
            try:
                return await self._ask(lambda session: session.get(key))
            except MemcacheUnexpectedCloseError:
                if attempt == _SESSIONS_PER_READ - 1:
                    raise

    # Keys and values.

    def _key(self, key):
        return _herdwick.check_key(key, self._unicode, self._prefix)

    def _serialize(self, key, value, flags):
        own = 0
        if self._serde is not None:
            value, own = self._serde.serialize(key, value)
        if not isinstance(value, bytes):
            try:
                value = str(value).encode(self._encoding)
            except UnicodeEncodeError as error:
                raise MemcacheIllegalInputError("Data values must be binary-safe: %s" % error)
        return value, own if flags is None else flags

    def _deserialize(self, key, item):
        value, flags, _ = item
        return value if self._serde is None else self._serde.deserialize(key, value, flags)

    # The calls.

    async def get(self, key, default=None):
        """Reads a value."""
        code, item = await self._read(self._key(key))
        return self._deserialize(key, item) if code == 1 else default

    async def gets(self, key, default=None, cas_default=None):
        """Reads a value and its version."""
        code, item = await self._read(self._key(key))
        if code != 1:
            return default, cas_default
        return self._deserialize(key, item), b"%d" % item[2]

    async def get_many(self, keys):
        """Reads many values at once; a dict of those that exist."""
        keys = list(keys)
        found = await asyncio.gather(*(self._read(self._key(key)) for key in keys))
        return {
            key: self._deserialize(key, item)
            for key, (code, item) in zip(keys, found)
            if code == 1
        }

    get_multi = get_many

    async def _store(self, how, key, value, expire, flags, cas=None):
        sent = self._key(key)
        data, flags = self._serialize(key, value, flags)
        code, _ = await self._ask(
            lambda session: session.store(how, sent, data, flags, expire, cas)
        )
        return code

    async def set(self, key, value, expire=0, flags=None):
        """Stores a value."""
        return await self._store("set", key, value, expire, flags) == 1

    async def set_many(self, values, expire=0, flags=None):
        """Stores many values at once; a list of the keys that were not stored."""
        keys = list(values)
        done = await asyncio.gather(*(self.set(key, values[key], expire, flags) for key in keys))
        return [key for key, stored in zip(keys, done) if not stored]

    set_multi = set_many

    async def add(self, key, value, expire=0, flags=None):
        """Stores a value if there is none."""
        return await self._store("add", key, value, expire, flags) == 1

    async def replace(self, key, value, expire=0, flags=None):
        """Stores a value if there is one."""
        return await self._store("replace", key, value, expire, flags) == 1

    async def append(self, key, value):
        """Adds bytes after the value."""
        return await self._store("append", key, value, 0, None) == 1

    async def prepend(self, key, value):
        """Adds bytes before the value."""
        return await self._store("prepend", key, value, 0, None) == 1

    async def cas(self, key, value, cas, expire=0, flags=None):
        """Stores a value if its version is still `cas`. `None`: there is no item."""
        code = await self._store("cas", key, value, expire, flags, cas)
        return None if code == -1 else code == 1

    async def delete(self, key):
        """Removes an item; whether there was one."""
        sent = self._key(key)
        code, _ = await self._ask(lambda session: session.delete(sent))
        return code == 1

    async def delete_many(self, keys):
        """Removes many items."""
        await asyncio.gather(*(self.delete(key) for key in keys))
        return True

    delete_multi = delete_many

    async def touch(self, key, expire=0):
        """Sets the time to live; whether there is an item."""
        sent = self._key(key)
        code, _ = await self._ask(lambda session: session.touch(sent, expire))
        return code == 1

    async def incr(self, key, value):
        """Adds to a number; `None`: there is no item."""
        return await self._count(key, value, True)

    async def decr(self, key, value):
        """Subtracts from a number, down to 0; `None`: there is no item."""
        return await self._count(key, value, False)

    async def _count(self, key, value, is_up):
        sent = self._key(key)
        code, number = await self._ask(lambda session: session.count(sent, value, is_up))
        return number if code == 1 else None
