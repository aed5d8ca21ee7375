"""Which implementation and which block sizes suit a shape. Pure Python."""

from typing import NamedTuple


class Gpu(NamedTuple):
  """A tile of a product [R, C] × [C, O] on a GPU.

  Attributes:
    R: rows.
    O: outputs.
    C: contracted, at a time.
    warps: of a program.
    stages: loads in flight.
    group: tile rows that are walked together.
  """

  R: int
  O: int
  C: int
  warps: int
  stages: int
  group: int = 8


class Rows(NamedTuple):
  """How rows are coded: R a program, C values of each at a time."""

  R: int
  C: int
  warps: int
  stages: int = 1


def implementation() -> str:
  """Returns the default: XLA's dot, until a measurement says otherwise."""
  return 'xla'


def gpu(rows: int, contracted: int, outputs: int, contract: str) -> Gpu:
  """Returns the tile of an s8 product."""
  if contract == 'first':
    return Gpu(256, 128, 128, 8, 3)
  return Gpu(128, 256, 128, 8, 3)


def gpu_float(rows: int, contracted: int, outputs: int, bytes: int) -> Gpu:
  return Gpu(128, 128, 64, 8, 3) if bytes == 2 else Gpu(64, 64, 32, 4, 2)


def gpu_rows(rows: int, columns: int) -> Rows:
  return Rows(1, 2048, 8)
