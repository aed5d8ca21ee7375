"""Finds the fastest block sizes, and keeps them in a file per kernel.

    find(__file__, Tiles, key(length=32768, heads=12))

`tuned.json` holds, by kind of device and by key, the winning blocks, their
seconds, the version of JAX and the date. A kernel's `blocks.py` looks there
first, and has a rule for shapes that were not measured. The file is written on
real hardware only.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import datetime
import functools
import json
import os
import pathlib
import random
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import jax
import jax.numpy as jnp

from kaiju_jax.kernels import timing

_FILE = 'tuned.json'
Blocks = Mapping[str, int]
Sizes = TypeVar('Sizes', bound=tuple)  # A kernel's named tuple of blocks.
# Pairs of blocks and the kinds of kernels that try them, the newest first.
_tried = jax.make_user_context(())


class SearchResult(NamedTuple):
  """The outcome of a search."""

  best: Blocks  # The fastest candidate.
  seconds: float  # The median time of one call with it.
  # {index of a refused candidate: the compiler's reason, or that its results
  # differ}.
  refused: dict[int, str]
  # The times of the first candidate; None if it was refused.
  first: timing.Spread | None = None
  untried: int = 0  # Candidates for which `timing.bound_time` left no time.
  spread: timing.Spread | None = None  # The times of one call with the best.


class Job(NamedTuple):
  """A search that has not begun."""

  # As for `search`, today's choice first where that is known.
  candidates: Sequence[Blocks]
  # Makes the operands, and returns `run` of `search`.
  prepare: Callable[[], Callable[[Blocks], Callable[[], Any]]]


def key(**shape: Any) -> str:
  """Returns the key in `tuned.json` for a shape."""
  return ' '.join(f'{name}={shape[name]}' for name in sorted(shape))


def device_kind() -> str:
  """Returns JAX's name for the kind of device to compile for."""
  # Only the abstract mesh describes a device that is not here.
  described = jax.sharding.get_abstract_mesh().abstract_device
  return described.device_kind if described else jax.devices()[0].device_kind


def trying(
  sizes: tuple, *kinds: str
) -> contextlib.AbstractContextManager[None]:
  """Traces kernels with these blocks, also those that were traced with others.

  Args:
    sizes: the named tuple of blocks to use.
    kinds: the kernels that use them; by default all that take their type.
  """
  return _tried(((sizes, kinds), *_tried.value))


def bind(
  call: Callable[[], Any], sizes: tuple, *kinds: str
) -> Callable[[], Any]:
  """Returns `call` inside of `trying`."""

  def bound():
    with trying(sizes, *kinds):
      return call()

  return bound


def find(
  file: str, sizes: type[Sizes], key: str, kind: str = ''
) -> Sizes | None:
  """Returns blocks on trial, or else the winner, or else None.

  Args:
    file: a module beside the kernel's `tuned.json`.
    sizes: the kernel's named tuple of blocks.
    key: see `key`.
    kind: the kernel, where several take this type.

  Raises:
    ValueError: as for `winner`.
  """
  for tried, kinds in _tried.value:
    if isinstance(tried, sizes) and (not kinds or kind in kinds):
      return tried
  best = winner(pathlib.Path(file).parent, device_kind(), key)
  return sizes(**best) if best else None


def winner(
  folder: str | pathlib.Path, device_kind: str, key: str
) -> dict[str, int] | None:
  """Returns the winning blocks, or None where none were measured.

  Args:
    folder: the kernel's folder.
    device_kind: see `device_kind`.
    key: see `key`.

  Raises:
    ValueError: names a file that cannot be read.
  """
  entry = _read(pathlib.Path(folder)).get(device_kind, {}).get(key)
  return dict(entry['blocks']) if entry else None


def write(
  folder: str | pathlib.Path, device_kind: str, key: str, found: SearchResult
) -> None:
  """Adds a search's winner to the folder's `tuned.json`."""
  folder = pathlib.Path(folder)
  entries = {kind: dict(each) for kind, each in _read(folder).items()}
  entries.setdefault(device_kind, {})[key] = {
    'blocks': dict(found.best),
    'seconds': found.seconds,
    'jax': jax.__version__,
    'date': datetime.datetime.now(datetime.UTC).date().isoformat(),
  }
  text = json.dumps(entries, indent=2, sort_keys=True)
  # A process that is killed here leaves the old file.
  partial = folder / f'.{_FILE}.{os.getpid()}'
  partial.write_text(f'{text}\n')
  os.replace(partial, folder / _FILE)
  _read.cache_clear()


def search(
  candidates: Sequence[Blocks],
  run: Callable[[Blocks], Callable[[], Any]],
  repeats: int = 9,
  calls: int = 4,
) -> SearchResult:
  """Times every candidate on the device at hand.

  The first comes first, the others in a fixed random order. Candidates are
  compiled in the first half of the time that `timing.bound_time` sets, and
  those for which it was too short are left out.

  Args:
    candidates: the candidates, each {name of a size: size}.
    run: takes a candidate and returns a call that computes with it. Where
      either raises a compiler's error, such as for want of shared memory or
      registers, the candidate counts as refused.
    repeats: rounds, each timing every candidate once.
    calls: calls per timing.

  Raises:
    ValueError: no candidate compiles; gives the reason for each.
  """
  runs, refused, untried, expected = {}, {}, 0, None
  order = list(range(len(candidates)))
  rest = order[1:]
  random.Random(0).shuffle(rest)
  half = timing.time_left() / 2
  for i in [*order[:1], *rest]:
    if runs and timing.time_left() < half:
      untried += 1
      continue
    candidate = candidates[i]
    try:
      with timing.trial(str(dict(candidate))):
        call = run(candidate)
        results = jax.block_until_ready(call())
    except (RuntimeError, ValueError) as why:
      refused[i] = str(why)
      continue
    expected = results if expected is None else expected
    if _agree(results, expected):
      runs[i] = call
    else:
      refused[i] = 'its results differ from those of the first that compiled'
  if not runs:
    reasons = [f'{candidates[i]}: {refused[i]}' for i in sorted(refused)]
    raise ValueError('no candidate compiles. ' + '; '.join(reasons))
  times = timing.spreads(
    {str(dict(candidates[i])): call for i, call in runs.items()}, repeats, calls
  )
  times = {i: times[str(dict(candidates[i]))] for i in runs}
  best = min(times, key=lambda i: times[i].median)
  return SearchResult(
    candidates[best],
    times[best].median,
    refused,
    times.get(0),
    untried,
    times[best],
  )


def _agree(results: Any, expected: Any) -> bool:
  """Returns whether arrays differ by rounding alone: fast may be wrong."""

  def agrees(x, y):
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    largest = jnp.max(jnp.abs(y), initial=0, where=jnp.isfinite(y))
    close = jnp.isclose(x, y, rtol=0, atol=0.05 * largest, equal_nan=True)
    return bool(close.all())

  return all(jax.tree.leaves(jax.tree.map(agrees, results, expected)))


@functools.cache
def _read(folder: pathlib.Path) -> dict[str, dict[str, dict]]:
  file = folder / _FILE
  if not file.exists():
    return {}
  try:
    return json.loads(file.read_text())
  except json.JSONDecodeError as error:
    raise ValueError(f'{file} is not JSON: {error}') from error
