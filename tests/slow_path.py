#!/usr/bin/env python3
"""Carries frames between two interfaces, each 50 ms late, and loses one of two hundred: a path with a
round trip of 100 ms that loses 1 %, where the kernel lacks netem. Needs root.

    slow_path.py INTERFACE INTERFACE
"""
import collections, fcntl, random, select, socket, struct, sys, time

DELAY, LOSS = 0.050, 0.005
ETH_P_ALL, SIOCETHTOOL = 0x0003, 0x8946
# A frame has to leave its sender whole: no checksums or segments left to the interface.
STXCSUM, STSO, SGSO = 0x17, 0x1F, 0x24


def turn_off(name):
    import ctypes
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for what in (SGSO, STSO, STXCSUM):
            value = ctypes.create_string_buffer(struct.pack("II", what, 0))
            request = struct.pack("16sP", name.encode(), ctypes.addressof(value)) + bytes(16)
            fcntl.ioctl(control, SIOCETHTOOL, request)


def opened(name):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.bind((name, ETH_P_ALL))
    raw.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    raw.setblocking(False)
    return raw


def carry(names):
    ends = [opened(name) for name in names]
    late = [collections.deque() for _ in ends]
    chance = random.Random(14)
    while True:
        due = min((queue[0][0] for queue in late if queue), default=None)
        wait = None if due is None else max(0, due - time.monotonic())
        ready, _, _ = select.select(ends, [], [], wait)
        now = time.monotonic()
        for end in ready:
            other = late[1 - ends.index(end)]
            for _ in range(256):
                try:
                    frame, origin = end.recvfrom(1 << 16)
                except BlockingIOError:
                    break
                # What this program sends itself is seen here again.
                if origin[2] != socket.PACKET_OUTGOING and chance.random() >= LOSS:
                    other.append((now + DELAY, frame))
        for end, queue in zip(ends, late):
            while queue and queue[0][0] <= now:
                try:
                    end.send(queue.popleft()[1])
                except OSError:
                    pass


if sys.argv[1] == "--off":
    turn_off(sys.argv[2])
else:
    carry(sys.argv[1:])
