"""The client for asyncio: tasks share one connection, and what they ask for is sent together.

>>> from herdwick.asyncio import AsyncClient
>>> async with AsyncClient("localhost:11211") as client:      # doctest: +SKIP
...     await client.set("greeting", b"hello")

There is no thread beside the event loop's, but while it connects. A call that is cancelled before it was
sent has not been made; after that it may be made, as one whose connection is lost.
"""

import asyncio
import collections
import copy
import functools
import socket

from herdwick import _herdwick
from herdwick._options import choose_serde, options, prefix_bytes, server_name
from herdwick.exceptions import (
    MemcacheIllegalInputError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownOutcomeError,
)

__all__ = ["AsyncClient"]

# Sessions that one call may use: one that was stale, one that breaks meanwhile, and one more.
_SESSIONS_PER_CALL = 3

# Seconds without dialling: after the first failure, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class _Call:
    """A call: when it has to be over, and how often the client had been closed when it began."""

    def __init__(self, client, is_read):
        self.timeout = client._timeout
        self.is_read = is_read
        self.closings = client._closings
        self.sessions = _SESSIONS_PER_CALL
        self.due = None if self.timeout is None else asyncio.get_running_loop().time() + self.timeout

    def limit(self, loop, future, error):
        """Ends the wait for `future` with `error` when the call is due."""
        if self.due is not None:
            timer = loop.call_at(self.due, _expire, future, error)
            future.add_done_callback(lambda _: timer.cancel())

    def timed_out(self):
        return socket.timeout("no answer within %s s" % self.timeout)


def _expire(future, error):
    if not future.done():
        future.set_exception(error)


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
        self._timeout = timeout
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
        self._closings = 0
        # Dials that have failed since one succeeded, why the last has, and until when no call dials.
        self._failures = 0
        self._failure = None
        self._pause_end = 0.0

    # Connecting.

    def _belong(self, loop):
        if self._loop is loop:
            return
        if self._session is not None:
            raise RuntimeError("the client belongs to another event loop")
        # What the last loop has left undone is over with it.
        self._loop, self._dialling, self._scheduled, self._failure = loop, None, False, None
        self._pending, self._waiting = {}, collections.deque()

    async def _connected(self):
        self._belong(asyncio.get_running_loop())
        while self._session is None:
            if self._dialling is None:
                if self._failure is not None and self._loop.time() < self._pause_end:
                    raise copy.copy(self._failure)
                self._dialling = self._loop.create_task(self._dial())
            # Shielded: one task's cancellation does not end the dialling for the others.
            await asyncio.shield(self._dialling)

    async def _dial(self):
        try:
            dial = functools.partial(_herdwick._Session, self._address, self._options)
            session = await self._loop.run_in_executor(None, dial)
        except Exception as error:
            pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 10), _LONGEST_PAUSE)
            self._failures += 1
            self._failure, self._pause_end = error, self._loop.time() + pause
            raise
        else:
            self._failures, self._failure = 0, None
            self._session = session
            self._loop.add_reader(session.fileno(), self._step)
        finally:
            self._dialling = None

    def _lose(self, why="the connection was lost"):
        """Gives the session up: what is in flight there ends, and who waits for room tries again."""
        session, self._session = self._session, None
        if session is not None:
            self._loop.remove_reader(session.fileno())
            if session.broken() is not None:
                # It knows best how its requests have ended.
                self._deliver(session)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for answer, is_read in pending.values():
            if not answer.done():
                lost = MemcacheUnexpectedCloseError if is_read else MemcacheUnknownOutcomeError
                answer.set_exception(lost(why))
        self._wake(len(self._waiting))

    async def close(self):
        """Closes the connection; calls without an answer end as if it were lost, and are not repeated. The
        next call opens another."""
        self._closings += 1
        if self._dialling is not None:
            await asyncio.wait([self._dialling])
        if self._session is not None:
            self._lose("the client was closed")

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
        count = self._deliver(session)
        if session.broken() is not None:
            self._lose()
            return
        self._wake(count)
        longest = session.arm()
        if longest == 0:
            self._schedule()
        elif longest is not None:
            self._timer = self._loop.call_later(longest, self._step)

    def _deliver(self, session):
        """Ends the calls whose answers have arrived. Returns how many answers these were."""
        answers = session.poll()
        for ticket, code, result, error in answers:
            answer, _ = self._pending.pop(ticket)
            if answer.done():
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result((code, result))
        return len(answers)

    def _wake(self, count):
        """Lets `count` of the waiting calls try again, or one if nothing is in flight."""
        if not self._pending:
            count = max(count, 1)
        while count > 0 and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    async def _room(self, first, call):
        """Waits until a request may be accepted; `first`: it was accepted too late once, and keeps its place."""
        waiting = self._loop.create_future()
        call.limit(self._loop, waiting, call.timed_out())
        (self._waiting.appendleft if first else self._waiting.append)(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._wake(1)
            raise

    async def _submit(self, submit, call):
        """Submits a request as soon as it is accepted, and returns its answer's future."""
        was_woken = False
        try:
            while True:
                await self._session_for(call)
                if was_woken or not self._waiting:
                    answer = self._try(submit, call, was_woken)
                    if answer is not None:
                        return answer
                    if self._session is None:
                        continue
                    # What is in flight has to be sent before there is room.
                    self._schedule()
                await self._room(was_woken, call)
                was_woken = True
        except BaseException:
            if was_woken:
                # The next one has the turn that this call does not use.
                self._wake(1)
            raise

    async def _session_for(self, call):
        """Sees to a session that a call may use. Connecting has its own time."""
        while True:
            if call.closings != self._closings:
                raise MemcacheUnexpectedCloseError("the client was closed")
            if call.due is not None and asyncio.get_running_loop().time() >= call.due:
                raise call.timed_out()
            if self._session is None or self._loop is not asyncio.get_running_loop():
                start = asyncio.get_running_loop().time()
                await self._connected()
                if call.due is not None:
                    call.due += self._loop.time() - start
            elif not self._pending and self._session.check():
                # Its server has gone since the last answer: nothing is sent there.
                self._lose()
            else:
                return

    def _try(self, submit, call, has_waited):
        """Submits a request. Returns `None` if there is no room, or if the session turns out to be lost."""
        try:
            ticket = submit(self._session)
        except MemcacheUnexpectedCloseError:
            # The session was found to be broken before anything was submitted.
            self._lose()
            call.sessions -= 1
            if call.sessions == 0:
                raise
            return None
        if ticket is None:
            return None
        answer = self._loop.create_future()
        self._pending[ticket] = answer, call.is_read
        if has_waited or call.sessions < _SESSIONS_PER_CALL:
            # The session would grant it the whole time from now on.
            late = call.timed_out() if call.is_read else MemcacheUnknownOutcomeError("no answer in time")
            call.limit(self._loop, answer, late)
        self._schedule()
        return answer

    async def _ask(self, submit, is_read=False):
        call = _Call(self, is_read)
        while True:
            answer = await self._submit(submit, call)
            try:
                return await answer
            except (MemcacheUnexpectedCloseError, socket.timeout):
                call.sessions -= 1
                is_late = call.due is not None and self._loop.time() >= call.due
                if not is_read or is_late or call.sessions == 0 or call.closings != self._closings:
                    raise

    async def _read(self, key):
        return await self._ask(lambda session: session.get(key), is_read=True)

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
