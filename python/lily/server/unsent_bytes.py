"""How many bytes written to a connection the other side has not received, including the system's buffer."""

from __future__ import annotations

import array
import asyncio
import socket
import sys

__all__ = ["unsent_bytes"]

_SO_NWRITE = 0x1024  # macOS's constant, which Python does not have


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Bytes in the transport and in the system's buffer, which may be megabytes and may be unknown."""
    waiting = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if connection is None:
        return waiting
    try:
        if sys.platform == "darwin":
            return waiting + int(connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
        if sys.platform == "linux":
            import fcntl
            import termios

            count = array.array("i", [0])
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
            return waiting + count[0]
    except (OSError, ValueError):
        pass  # the socket is closed
    return waiting
