"""Gives memory back to the system that compilations left with the allocator."""

import ctypes


def trim() -> None:
  """Returns free memory to the system, where glibc is the allocator."""
  try:
    release = ctypes.CDLL(None).malloc_trim
  except (OSError, AttributeError):
    return  # Another C library, which returns memory as it likes.
  release(0)
