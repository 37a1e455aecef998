"""Tries a HERD client against a server, with a memcached connection as the witness."""

import socket, time

PAST = 2_592_001  # an exptime in January 1970


class Memcached:
    """What the same server says over TCP."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.file = self.socket.makefile("rb")

    def store(self, verb, key, value, flags=0, exptime=0, *cas):
        words = [verb, key.decode(), str(flags), str(exptime), str(len(value)), *map(str, cas)]
        self.socket.sendall(" ".join(words).encode() + b"\r\n" + value + b"\r\n")
        return self.file.readline().strip().decode()

    def gets(self, key):
        """Value, flags, cas unique; None for a miss."""
        self.socket.sendall(b"gets " + key + b"\r\n")
        head = self.file.readline().split()
        if head == [b"END"]:
            return None
        _, found, flags, length, unique = head
        value = self.file.read(int(length))
        assert found == key and self.file.read(2) + self.file.readline() == b"\r\nEND\r\n"
        return value, int(flags), int(unique)


def until(condition, seconds=10):
    """Waits for something that comes by itself."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not come"
        time.sleep(0.01)


def equal(got, wanted):
    assert got == wanted, f"got {got!r}, wanted {wanted!r}"


def keys_for_all(herd, prefix):
    """A key for each worker."""
    keys = {}
    for n in range(10_000):
        key = f"{prefix}-{n}".encode()
        keys.setdefault(herd.worker_of(key), key)
    equal(len(keys), len(herd.channels))
    return list(keys.values())


def set_by_herd_is_read_by_tcp(herd, tcp):
    for key in keys_for_all(herd, "herd"):
        reply = herd.set(key, b"written to memory", flags=0xDEADBEEF)
        equal(reply.status, "DONE")
        equal(tcp.gets(key), (b"written to memory", 0xDEADBEEF, reply.number))


def set_by_tcp_is_read_by_herd(herd, tcp):
    for key in keys_for_all(herd, "tcp"):
        equal(tcp.store("set", key, b"sent as text", 77), "STORED")
        reply = herd.get(key)
        equal((reply.status, reply.data, reply.flags), ("DONE", b"sent as text", 77))
        equal(reply.number, tcp.gets(key)[2])


def a_miss_is_a_miss(herd, tcp):
    for key in keys_for_all(herd, "nowhere"):
        reply = herd.get(key)
        equal((reply.status, reply.length), ("NOT_FOUND", 8))
        equal(tcp.gets(key), None)


def values_through_the_overflow_area(herd, tcp):
    for size in (40, 41, 48, 49, 600, 980):
        for key in keys_for_all(herd, f"o{size}"):
            value = bytes((n * 7 + size) % 256 for n in range(size))
            equal(herd.set(key, value, flags=size).status, "DONE")
            equal(tcp.gets(key)[:2], (value, size))
            equal(herd.get(key).data, value)


def a_stale_version_changes_nothing(herd, tcp):
    for key in keys_for_all(herd, "cas"):
        first = herd.set(key, b"one").number
        equal(tcp.store("set", key, b"two"), "STORED")
        equal(herd.set(key, b"three", compare=first).status, "EXISTS")
        second = herd.get(key)
        equal(second.data, b"two")
        third = herd.set(key, b"three", compare=second.number)
        equal(third.status, "DONE")
        equal(tcp.store("cas", key, b"four", 0, 0, second.number), "EXISTS")
        equal(tcp.store("cas", key, b"four", 0, 0, third.number), "STORED")
        equal(herd.get(key).data, b"four")
        equal(herd.set(b"nothing-" + key, b"five", compare=first).status, "NOT_FOUND")


def what_expires_is_gone(herd, tcp):
    keys = keys_for_all(herd, "ttl")
    for key in keys:
        equal(herd.set(key, b"never seen", exptime=PAST).status, "DONE")
        equal((herd.get(key).status, tcp.gets(key)), ("NOT_FOUND", None))
    for key in keys:
        equal(herd.set(key, b"brief", exptime=2).status, "DONE")
        equal(tcp.store("set", key + b"-tcp", b"brief", 0, 2), "STORED")
        equal(herd.get(key).data, b"brief")
    for key in keys:
        until(lambda: herd.get(key).status == "NOT_FOUND")
        until(lambda: tcp.gets(key + b"-tcp") is None)
        equal(tcp.gets(key), None)


def a_value_too_large_says_so(herd, tcp):
    for key in keys_for_all(herd, "large"):
        equal(tcp.store("set", key, bytes(4080)), "STORED")
        equal(herd.get(key).data, bytes(4080))
        equal(tcp.store("set", key, bytes(5000)), "STORED")
        reply = herd.get(key)
        equal((reply.status, int.from_bytes(reply.data, "little")), ("REPLY_TOO_LARGE", 5000))


def rings_and_windows_go_round(herd, tcp):
    """More requests than a ring of 8 cells has in 128 laps, at each worker."""
    keys = keys_for_all(herd, "round")
    for n in range(1100):
        for key in keys:
            value = b"%d" % n * (1 + n % 30)
            equal(herd.set(key, value).status, "DONE")
            equal(herd.get(key).data, value)
    for key in keys:
        equal(tcp.gets(key)[0], value)


def a_sleeping_worker_wakes(herd, tcp):
    for key in keys_for_all(herd, "sleep"):
        channel = herd.channels[herd.worker_of(key)]
        until(channel.parked)
        equal(herd.set(key, b"good morning").status, "DONE")
        equal(tcp.gets(key)[0], b"good morning")


CHECKS = [
    set_by_herd_is_read_by_tcp,
    set_by_tcp_is_read_by_herd,
    a_miss_is_a_miss,
    values_through_the_overflow_area,
    a_stale_version_changes_nothing,
    what_expires_is_gone,
    a_value_too_large_says_so,
    rings_and_windows_go_round,
    a_sleeping_worker_wakes,
]


def main(connect, port):
    herd, tcp = connect(port), Memcached(port)
    for check in CHECKS:
        check(herd, tcp)
        print("ok", check.__name__.replace("_", " "), flush=True)
    herd.close()
    print(f"ok, all with {len(herd.channels)} workers")
