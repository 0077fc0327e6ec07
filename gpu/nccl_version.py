"""Prints the version of the libnccl.so.2 that a program started with this environment would load, as NCCL counts: 23007 is 2.30.7."""

import ctypes

version = ctypes.c_int()
if ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version)) != 0:
    raise SystemExit("ncclGetVersion has failed")
print(version.value)
