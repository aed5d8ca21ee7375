"""Measures the time of encoding and decoding, in memory copies.

    python -m kaiju_jax.kernels.squinch.copies [--threads=4] [--json=PATH]

The unit is a copy of the float32 input (it reads as many bytes as it writes),
in the same process, the same round and on the same cores. All calls write into
donated buffers: the system zeroes the pages of a fresh buffer, which takes
longer than several copies and would hide the codec's own time. The table
compares planes with the layout of structs, uint8[G, C, 6], in which a block's
six bytes are contiguous.
"""

from collections.abc import Callable
from collections.abc import Sequence
import json
import os
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import timing
from kaiju_jax.kernels.squinch import reference

LAYOUTS = 'planes', 'structs'
COPY = 'copy'


class Row(NamedTuple):
  """One way of coding: seconds, and their ratio to a copy's."""

  layout: str
  header: str
  elements: str
  encode: float
  decode: float
  copies: float


def measure(rows: int, columns: int, repeats: int) -> tuple[float, list[Row]]:
  """Returns the median seconds of a copy, and a row for each way of coding.

  Args:
    rows: the number of the input's rows, a multiple of 8.
    columns: the number of the input's columns.
    repeats: rounds, each timing everything once.
  """
  x_RC = jax.random.normal(jax.random.key(0), (rows, columns))
  runs = {COPY: _into_the_same(jnp.copy, x_RC)}
  for layout, header, elements in _cases():
    encode, decode = _pair(layout, header, elements)
    packed = jax.jit(encode)(x_RC)
    runs[layout, header, elements, 'encode'] = _into_the_same(encode, x_RC)
    runs[layout, header, elements, 'decode'] = _into_the_same(decode, packed)
  seconds = timing.medians(runs, repeats)
  found = []
  for case in _cases():
    encode, decode = seconds[*case, 'encode'], seconds[*case, 'decode']
    found.append(Row(*case, encode, decode, (encode + decode) / seconds[COPY]))
  return seconds[COPY], found


def _cases():
  return [
    (layout, header, elements)
    for layout in LAYOUTS
    for header in reference.HEADERS
    for elements in reference.ELEMENTS
  ]


def _pair(layout: str, header: str, elements: str):
  def encode(x_RC):
    packed_PGC = reference.encode(x_RC, elements, header)
    return packed_PGC if layout == 'planes' else jnp.moveaxis(packed_PGC, 0, 2)

  def decode(packed):
    if layout == 'structs':
      packed = jnp.moveaxis(packed, 2, 0)
    return reference.decode(packed, elements, header)

  return encode, decode


def _into_the_same(f: Callable, operand: jax.Array) -> Callable[[], Any]:
  """Returns a call of f that writes into the previous call's buffer."""
  run = jax.jit(
    lambda out, operand: f(operand), donate_argnums=0, keep_unused=True
  )
  shape = jax.eval_shape(f, operand)
  held = [jnp.zeros(shape.shape, shape.dtype)]

  def call():
    held[0] = run(held[0], operand)
    return held[0]

  return call


def report(rows: int, columns: int, repeats: int, threads: int) -> dict:
  """Returns the measurements with the device and versions, ready for JSON.

  Args:
    rows: see `measure`.
    columns: see `measure`.
    repeats: see `measure`.
    threads: number of cores to restrict the process to, where possible.
  """
  if hasattr(os, 'sched_setaffinity'):
    # The first computation starts XLA's threads, so this must precede it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    threads = len(os.sched_getaffinity(0))
  else:
    threads = os.cpu_count()
  copy, found = measure(rows, columns, repeats)
  return {
    'mebibytes': rows * columns * 4 / 2**20,
    'threads': threads,
    'platform': jax.default_backend(),
    'jax': jax.__version__,
    'repeats': repeats,
    'copy': copy,
    'rows': [row._asdict() for row in found],
  }


def table(found: dict) -> str:
  """Returns a `report` as text."""
  lines = [
    f'{found["mebibytes"]:g} MiB of float32, {found["threads"]} threads'
    f' ({found["platform"]}), JAX {found["jax"]}, medians of'
    f' {found["repeats"]} rounds; a copy takes {1e3 * found["copy"]:.2f} ms',
    '',
    'layout   header   elements  encode, ms  decode, ms  copies',
  ]
  for row in (Row(**each) for each in found['rows']):
    lines.append(
      f'{row.layout:8} {row.header:8} {row.elements:8} {1e3 * row.encode:11.2f}'
      f' {1e3 * row.decode:11.2f} {row.copies:7.2f}'
    )
  return '\n'.join(lines)


def _run() -> None:
  # Imported here, so that importing the module defines no flags.
  from absl import app
  from absl import flags

  rows = flags.DEFINE_integer('rows', 4096, 'A multiple of 8.', lower_bound=8)
  columns = flags.DEFINE_integer('columns', 4096, 'Columns.', lower_bound=1)
  repeats = flags.DEFINE_integer('repeats', 15, 'Rounds.', lower_bound=1)
  threads = flags.DEFINE_integer(
    'threads', 1, 'Cores, for the copy as for the codec.', lower_bound=1
  )
  path = flags.DEFINE_string('json', '', 'File for the numbers.')

  def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
    found = report(rows.value, columns.value, repeats.value, threads.value)
    print(table(found))
    if path.value:
      text = json.dumps(found, indent=2)
      pathlib.Path(path.value).write_text(f'{text}\n')

  app.run(main)


if __name__ == '__main__':
  _run()
