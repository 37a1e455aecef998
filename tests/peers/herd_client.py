#!/usr/bin/env python3
"""A HERD client over shared memory that knows the server from docs/wire.md alone.

As a script: herd_client.py PORT tries itself against the server at 127.0.0.1:PORT. x86-64 only:
it takes plain loads and stores of words for acquire and release.
"""

import mmap, os, platform, re, socket, struct, sys, threading, time
from types import SimpleNamespace

WIRE_MD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/wire.md")
assert platform.machine() == "x86_64" and sys.byteorder == "little", "needs x86-64"


class Layout:
    """One table of wire.md: where each field lies, and which bits of it have names."""

    def __init__(self, rows):
        self.at = {name: (int(offset), int(size)) for name, offset, size, _ in rows}
        self.bytes = max(offset + size for offset, size in self.at.values())
        self.bit = {}
        for *_, meaning in rows:
            for low, high, name in re.findall(r"\bbits? (\d+)(?:-(\d+))? (\w+)", meaning):
                self.bit[name] = (int(low), int(high or low) - int(low) + 1)

    def pack(self, **values):
        out = bytearray(self.bytes)
        for name, value in values.items():
            offset, size = self.at[name]
            value = value if isinstance(value, bytes) else value.to_bytes(size, "little")
            assert len(value) <= size, name
            out[offset : offset + len(value)] = value
        return bytes(out)

    def unpack(self, data, at=0):
        data = bytes(data[at : at + self.bytes])
        number = lambda offset, size: int.from_bytes(data[offset : offset + size], "little")
        return SimpleNamespace(**{name: number(*place) for name, place in self.at.items()})

    def bits(self, **values):
        return sum(value << self.bit[name][0] for name, value in values.items())

    def pick(self, word, name):
        low, width = self.bit[name]
        return word >> low & (1 << width) - 1


def read_wire():
    """Every table between two markers: a Layout, or a dictionary of codes."""
    wire = SimpleNamespace()
    with open(WIRE_MD) as file:
        text = file.read()
    for section, body in re.findall(r"<!-- (\w+) -->\n(.*?)<!-- end of \1 -->", text, re.S):
        rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (.*) \|$", body, re.M)
        codes = re.findall(r"^\| (\w+) \| (\d+) \|$", body, re.M)
        setattr(wire, section, Layout(rows) if rows else {name: int(code) for name, code in codes})
    return wire


WIRE = read_wire()
STATUS = {code: name for name, code in WIRE.statuses.items()}
LINE, CONTROL = WIRE.cell.bytes, WIRE.control_area.bytes
U64 = (1 << 64) - 1


def siphash13(k0, k1, data):
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    rotate = lambda x, n: (x << n | x >> 64 - n) & U64

    def round(v0, v1, v2, v3):
        v0 = (v0 + v1) & U64; v1 = rotate(v1, 13) ^ v0; v0 = rotate(v0, 32)
        v2 = (v2 + v3) & U64; v3 = rotate(v3, 16) ^ v2
        v0 = (v0 + v3) & U64; v3 = rotate(v3, 21) ^ v0
        v2 = (v2 + v1) & U64; v1 = rotate(v1, 17) ^ v2; v2 = rotate(v2, 32)
        return v0, v1, v2, v3

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        v0, v1, v2, v3 = round(v0, v1, v2, v3 ^ word)
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def map_words(fd, writable=False):
    memory = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ | mmap.PROT_WRITE * writable)
    os.close(fd)
    return memory, memoryview(memory).cast("Q")


class Channel:
    """One worker: its domain, the window there, and the ring for its replies."""

    CELLS_LOG2, LONG_LOG2 = 3, 7  # one request at a time; 8 KiB hold a reply of 4,096 bytes
    UC, UD, REQUESTS, REPLIES = 1, 2, 0, 1  # transports, and our lines on the control area

    def __init__(self, granted, ticket, fds, window):
        self.ticket = WIRE.ticket.unpack(ticket)
        (self.up, self.up_words), (self.down, self.down_words) = map_words(fds[0], True), map_words(fds[1])
        self.board, self.event = map_words(fds[2])[1], fds[4]
        self.heard = socket.socket(fileno=fds[3])  # of no use to a client that polls
        self.lines, _ = self.region(granted.lines_rkey, granted.lines_addr)
        self.overflow, areas = self.region(granted.overflow_rkey, granted.overflow_addr)
        self.area_bytes = areas // window
        self.window, self.next, self.rung = window, 0, 0
        self.ring = CONTROL + self.ticket.domain % 64 * LINE
        self.cells, self.long_lines = 1 << self.CELLS_LOG2, 1 << self.LONG_LOG2
        self.cells_taken = self.long_taken = 0
        assert self.ring + (self.cells + self.long_lines) * LINE <= self.ticket.down_split
        for line in (self.REQUESTS, self.REPLIES):
            state = WIRE.queue_pair.bits(number=line + 1, READY=1)
            self.up_words[self.queue_pair_at(line, "state") // 8] = state

    def queue_pair_at(self, line, field):
        return WIRE.control_area.at["queue_pairs"][0] + line * WIRE.queue_pair.bytes + WIRE.queue_pair.at[field][0]

    def endpoint(self, transport, line):
        ring = {} if transport == self.UC else {
            "cells_log2": self.CELLS_LOG2, "long_log2": self.LONG_LOG2, "ring": self.ring}
        return WIRE.endpoint.pack(magic=b"hs\x01", side=1, transport=transport, line=line,
                                  domain=self.ticket.domain, number=line + 1, **ring)

    def region(self, rkey, addr):
        entry = WIRE.control_area.at["regions"][0] + rkey % 64 * WIRE.region.bytes
        region = WIRE.region.unpack(self.down, entry)
        assert region.rkey == rkey and WIRE.region.pick(region.rights, "WRITE")
        assert not WIRE.region.pick(region.place, "DOWN")
        return WIRE.region.pick(region.place, "start") + addr, region.length - addr

    def write_line(self, slot, line):
        at = (self.lines + slot * WIRE.line.bytes) // 8
        for n, (word,) in enumerate(struct.iter_unpack("<Q", line)):
            self.up_words[at + n] = word  # in rising order: the control word last

    def parked(self):
        return self.board[0] & 1 == 1

    def ring_if_parked(self):
        """Called with every poll, so a stale parked word is only seen late: no fence is needed."""
        word = self.board[0]
        if word & 1 and word != self.rung:
            self.rung = word
            os.write(self.event, struct.pack("<Q", 1))

    def poll(self):
        """The next reply: its immediate and its bytes."""
        at = self.ring + self.cells_taken % self.cells * LINE
        control = self.down_words[(at + WIRE.cell.at["control"][0]) // 8]
        if WIRE.cell.pick(control, "lap") != (self.cells_taken // self.cells + 1) % 128:
            return None
        length = WIRE.cell.pick(control, "len")
        if length <= WIRE.cell.at["payload"][1]:
            message = self.down[at : at + length]
        else:
            count, start = -(-length // LINE), self.ring + self.cells * LINE
            places = [start + (self.long_taken + n) % self.long_lines * LINE for n in range(count)]
            message = b"".join(self.down[place : place + LINE] for place in places)[:length]
            self.long_taken += count
        self.cells_taken += 1
        self.up_words[self.queue_pair_at(self.REPLIES, "long_taken") // 8] = self.long_taken
        self.up_words[self.queue_pair_at(self.REPLIES, "cells_taken") // 8] = self.cells_taken
        return WIRE.cell.pick(control, "imm"), message


class Client:
    """A lease at the server behind 127.0.0.1:port. One request at a time, from one thread."""

    def __init__(self, port, window=4):
        tcp = socket.create_connection(("127.0.0.1", port), 5)
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip().replace("-", "")
        tcp.sendall(f"hello herdwick/0 fabrics=shm boot={boot}\r\n".encode())
        name, version, *fields = tcp.makefile("rb").readline().decode().split()
        assert (name, version) == ("HERDWICK", "0"), name
        offer = dict(field.split("=", 1) for field in fields)
        kind, key = offer["hash"].split(":")
        assert kind == "siphash13"
        self.key = int(key[:16], 16), int(key[16:], 16)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(5)
        self.socket.connect(offer["shm"])
        claim = WIRE.claim.pack(token=bytes.fromhex(offer["token"]), window=window, reply_bytes_max=4096)
        self.send("CLAIM", claim)
        grant, fds = self.receive("GRANT")
        self.take(grant, fds)
        blobs = [channel.endpoint(*which) for channel in self.channels
                 for which in ((Channel.UC, Channel.REQUESTS), (Channel.UD, Channel.REPLIES))]
        accept = b"".join(struct.pack("<H", len(blob)) + blob for blob in blobs)
        self.send("ACCEPT", bytes([len(self.channels)]) + accept)
        self.receive("GO")
        self.ended = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def send(self, kind, body):
        head = WIRE.frame.pack(magic=b"HWL", kind=WIRE.kinds[kind], length=len(body))
        self.socket.sendall(head + body)

    def receive(self, kind):
        data, fds, *_ = socket.recv_fds(self.socket, WIRE.frame.bytes, 253)
        read = lambda count: self.socket.recv(count, socket.MSG_WAITALL) if count else b""
        head = WIRE.frame.unpack(data + read(WIRE.frame.bytes - len(data)))
        body = read(head.length)
        if head.kind != WIRE.kinds[kind]:
            raise ConnectionError(f"frame {head.kind} instead of {kind}: {body.hex()}")
        return body, fds

    def take(self, grant, fds):
        head, at = WIRE.grant.unpack(grant), WIRE.grant.bytes
        self.epoch, self.channels = head.epoch, []
        for _ in range(head.workers):
            granted = WIRE.worker.unpack(grant, at)
            at += WIRE.worker.bytes
            blobs = []
            for _ in ("ticket", "requests", "replies"):
                (length,) = struct.unpack_from("<H", grant, at)
                blobs.append(grant[at + 2 : at + 2 + length])
                at += 2 + length
            mine, fds = fds[: granted.fds], fds[granted.fds :]
            self.channels.append(Channel(granted, blobs[0], mine, head.window))

    def beat(self):
        while not self.ended.wait(2):
            self.socket.sendall(b"\x00")

    def close(self):
        self.ended.set()
        self.socket.close()

    def worker_of(self, key):
        return (siphash13(*self.key, key) >> 48) * len(self.channels) >> 16

    def get(self, key):
        return self.call("GET", key)

    def set(self, key, value, flags=0, exptime=0, compare=None):
        return self.call("SET", key, value, (flags, exptime), compare)

    def call(self, operation, key, value=b"", attr=(0, 0), compare=None):
        worker = self.worker_of(key)
        channel = self.channels[worker]
        head = struct.pack("<II", *attr) if any(attr) else b""
        opcode = WIRE.line.bits(operation=WIRE.operations[operation], HAS_ATTR=any(attr),
                                HAS_COMPARE=compare is not None)
        head += struct.pack("<Q", compare) if compare is not None else b""
        body, slot = head + key + value, channel.next % channel.window
        if len(body) > WIRE.line.at["body"][1]:
            assert len(body) <= channel.area_bytes, "too large for the fabric"
            area = channel.overflow + slot * channel.area_bytes
            channel.up[area : area + len(body)] = body
            opcode |= WIRE.line.bits(OVERFLOW=1)
            head = WIRE.overflow.pack(overflow_len=len(body), overflow_crc=crc32c(body))
            body = head[WIRE.line.at["body"][0] :]
        sequence, channel.next = channel.next % (1 << 24), channel.next + 1
        imm = WIRE.imm.pack(imm_sequence=sequence, imm_worker=worker)
        fields = dict(hash=siphash13(*self.key, key), body=body, opcode=opcode, key_len=len(key),
                      sequence=sequence, epoch=self.epoch)
        for attempt in range(10):
            body_len = len(body) | WIRE.line.bits(attempt=attempt % 4)
            channel.write_line(slot, WIRE.line.pack(body_len=body_len, **fields))
            if reply := self.wait(channel, int.from_bytes(imm, "little"), 0.5):
                return reply
        raise TimeoutError(f"no reply to {operation} {key}")

    def wait(self, channel, imm, timeout):
        give_up = time.monotonic() + timeout
        while time.monotonic() < give_up:
            channel.ring_if_parked()
            if not (message := channel.poll()):
                os.sched_yield()
            elif message[0] == imm:  # else the second answer to a retry
                reply = WIRE.reply.unpack(message[1])
                assert reply.reply_epoch == self.epoch
                reply.length = len(message[1])
                reply.data = message[1][WIRE.reply.at["value"][0] :]
                reply.status = STATUS[reply.status]
                return reply
        return None


if __name__ == "__main__":
    import herd_check
    herd_check.main(Client, int(sys.argv[1]))
