"""Reads how busy a TPU's units are in a kernel's compiled schedule.

    for stretch in schedule.read(make, 'v5e_256')['attention']:
      stretch.depth, stretch.bundles, stretch.busy['MXU']

A TPU's core issues one bundle of instructions per cycle. libtpu places each
instruction at compile time and knows the latencies of the units. A stretch of
code without branches that waits for no copy therefore takes as many cycles as
it has bundles, and the filled share of a unit's slots says how busy the unit
is. These are cycles in the compiler's own model: nothing here was timed.

libtpu's dump is no public interface: a later version may have another form.
"""

from collections.abc import Callable
import dataclasses
import pathlib
import re
from typing import Any

from kaiju_jax.aot import tpu_kernels

# A stretch ends at a branch, and at a label that a branch may reach.
_EDGE = re.compile(r'sbr\.rel|^\s*\w+ (?:LH|LB|LE|PB|PF|CT):')
_BUNDLE = re.compile(r'^\s*(?:0x)?[0-9a-f]+(?: \w\w)?\s*: ?(>*)')
_USE = '-final_hlo-static-per-bundle-utilization.txt'


@dataclasses.dataclass(frozen=True)
class Stretch:
  """A run of bundles without a branch."""

  depth: int  # Number of loops around it; a kernel's grid counts as one.
  bundles: int  # Number of bundles.
  # The share of each unit's slots that is filled, by the unit's name. MXU is
  # the matrix unit, VALU the vector unit, XLU moves between lanes, EUP computes
  # exp and the like, VSTORE and VLOAD are vector memory, SALU scalars.
  busy: dict[str, float]


def read(
  make: Callable[[], Any], accelerator: str, shortest: int = 64
) -> dict[str, tuple[Stretch, ...]]:
  """Compiles for a TPU and returns {kernel: its stretches}.

  Args:
    make: see `tpu_kernels.read`.
    accelerator: see `tpu_kernels.read`.
    shortest: the least number of bundles of a stretch that counts.

  Raises:
    devices.MissingPlugin, RuntimeError: see `tpu_kernels.read`.
  """
  with tpu_kernels.dump(make, accelerator) as folder:
    return {
      name: tuple(
        stretch
        for stretch in stretches(file.read_text(), _use(file).read_text())
        if stretch.bundles >= shortest
      )
      for name, file in tpu_kernels.final_bundles(folder)
    }


def _use(bundles: pathlib.Path) -> pathlib.Path:
  """Returns the kernel's file with the use of units per bundle."""
  stem = re.sub(r'-\d+-final_bundles\.txt$', '', bundles.name)
  (found,) = bundles.parent.glob(f'{stem}-*{_USE}')
  return found


def stretches(bundles: str, use: str) -> list[Stretch]:
  """Cuts a kernel's text into stretches.

  Args:
    bundles: the text of the file of final bundles.
    use: the text of the file with each bundle's number of instructions by unit.

  Raises:
    ValueError: the two disagree on the number of bundles, or have another form.
  """
  lines = [line for line in bundles.splitlines() if _BUNDLE.match(line)]
  units, slots, counts = _table(use)
  if len(lines) != len(counts):
    raise ValueError(
      f'{len(lines)} bundles, but {len(counts)} counts of their instructions:'
      ' this libtpu writes them in another form.'
    )
  edges = [n for n, line in enumerate(lines) if _EDGE.search(line)]
  found = []
  for start, end in zip([0, *edges], [*edges, len(lines)]):
    if start == end:
      continue
    filled = [sum(column) for column in zip(*counts[start:end])]
    found.append(
      Stretch(
        depth=len(_BUNDLE.match(lines[end - 1])[1]),
        bundles=end - start,
        busy={
          unit: count / (slot * (end - start))
          for unit, slot, count in zip(units, slots, filled)
        },
      )
    )
  return found


def _table(use: str):
  """Returns the units, their slots per bundle, and the slots in use."""
  _, units, slots, _, *rows = use.strip().splitlines()
  return (
    [unit.strip() for unit in units.split(',')],
    [int(slot) for slot in slots.split()],
    [[int(count) for count in row.split()] for row in rows],
  )
