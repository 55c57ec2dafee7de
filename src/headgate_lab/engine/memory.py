"""Memory of a training on a CPU: kept between steps, where C's library would give it back and ask for it again."""

from __future__ import annotations

import ctypes
import platform

# As glibc's malloc.h has them.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST_KEPT, MOST_KEPT, ASKED_FOR_AT_ONCE = 2**30, 2**31 - 1, 2**28


def keep_freed_memory() -> bool:
    """Tensors up to a gigabyte are made, from now on, of what earlier ones left; whether that could be arranged.

    By default glibc takes every block of more than 32 megabytes from the system and hands it back when it is freed, so
    that a step begins with the zeroing of each page that it writes to. The images inside a network are such blocks.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    wanted = {M_MMAP_THRESHOLD: LARGEST_KEPT, M_TRIM_THRESHOLD: MOST_KEPT, M_TOP_PAD: ASKED_FOR_AT_ONCE}
    # The first one is what older versions refuse. The others alone would make them hand back more than before.
    return all(mallopt(option, value) == 1 for option, value in wanted.items())
