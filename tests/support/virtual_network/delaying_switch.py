"""A switch in user space whose links delay frames and limit their rate, for kernels without `netem`.

    python delaying_switch.py DELAY_MS MBIT NAMESPACE...

Makes a device `eth0` in each namespace and forwards frames between them until it is terminated. It must be started in a
namespace of its own. Every frame takes DELAY_MS from one host to another. MBIT limits each direction of each link but
the first host's; 0 is no limit. A link drops what would wait for more than 400 ms.
"""

import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LONGEST_FRAME = 1514
MOST_WAIT_S = 0.4
FRAMES_AT_ONCE = 64


def tap(number: int, namespace: str) -> int:
    """Return the descriptor of a new device `eth0` in `namespace`. It follows the device there."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", f"tap{number}".encode(), IFF_TAP | IFF_NO_PI))
    move = ["ip", "link", "set", f"tap{number}", "netns", namespace, "name", "eth0"]
    subprocess.run(move, check=True)
    return descriptor


def main(delay: float, bits_per_s: float, namespaces: list[str]) -> None:
    ports = [tap(number, namespace) for number, namespace in enumerate(namespaces)]
    port_of: dict[bytes, int] = {}
    free_at: dict[tuple[int, bool], float] = {}
    waiting: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    poll = select.epoll()
    for port in ports:
        poll.register(port, select.EPOLLIN)
    limited = set(ports[1:]) if bits_per_s else set()

    def through(link: tuple[int, bool], frame: bytes, at: float) -> float:
        """Return when a frame that is there at `at` has passed a link; infinite if the link drops it."""
        if link[0] not in limited:
            return at
        begins = max(at, free_at.get(link, 0.0))
        if begins - at > MOST_WAIT_S:
            return float("inf")
        free_at[link] = ends = begins + len(frame) * 8 / bits_per_s
        return ends

    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(waiting)
            try:
                os.write(port, frame)
            except OSError:  # the device is down, as that of a host without a link
                continue
        timeout = max(0.0, waiting[0][0] - now) if waiting else -1
        for source, _ in poll.poll(timeout):
            for _ in range(FRAMES_AT_ONCE):
                try:
                    frame = os.read(source, LONGEST_FRAME)
                except OSError:
                    break
                port_of[frame[6:12]] = source
                sent = through((source, True), frame, time.monotonic())
                known = port_of.get(frame[:6])
                for port in ports if known is None else [known]:
                    if port != source:
                        arrives = through((port, False), frame, sent + delay)
                        if arrives < float("inf"):
                            heapq.heappush(waiting, (arrives, next(numbers), port, frame))


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1e3, float(sys.argv[2]) * 1e6, sys.argv[3:])
