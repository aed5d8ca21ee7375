"""Writes a run's records and events, and updates the progress line.

The loop dispatches a step without waiting for it. The journal fetches the
step's values after the loop has dispatched the next one. So the device never
waits for the host, and the host is never more than one step ahead.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import math
import pathlib
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp

from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as config_lib
from kaiju_jax.training import divergence
from kaiju_jax.training import interrupt
from kaiju_jax.training import progress as progress_lib
from kaiju_jax.training import token_count
from kaiju_jax.training.records import metrics
from kaiju_jax.training.records import throughput


class Journal:
  """The recorder of the steps after `last_step`.

  Opening cuts metrics.jsonl back to `last_step`. With `folder=None`, as in all
  processes but the first, it writes no files.
  """

  def __init__(
    self,
    folder: pathlib.Path | None,
    last_step: int,
    config: config_lib.LoopConfig,
    progress: progress_lib.Progress,
    schedule: batch_schedule.BatchSchedule,
    watch: divergence.Watch,
  ):
    self._config = config
    self._watch = watch
    self._schedule = schedule
    self._progress = progress
    self._clock = throughput.Throughput()
    self._first = last_step + 1
    self._pending = None
    self._books = []
    if folder is not None:
      self._records = metrics.Records(folder, last_step)
      self._events = _events(folder, last_step, progress)
      self._books = [self._records, *self._events]

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind, *_) -> None:
    # A second error (the disk is still full) would only hide the first.
    with contextlib.suppress(*([OSError] if kind else [])):
      for book in self._books:
        book.close()

  def step(
    self, number: int, tokens: Any, values: Mapping[str, jax.Array]
  ) -> None:
    """Notes a dispatched step, and records the one before once it is done."""
    self._finish_pending()
    wanted = number % self._config.log_every == 0 or number == self._first
    # A copy, because the state that `tokens` belongs to is donated.
    tokens = jax.tree.map(jnp.copy, tokens) if wanted else None
    self._watch.start_copies(values)
    self._pending = (number, tokens, values)

  def evaluation(
    self, number: int, tokens: Any, values: Mapping[str, float]
  ) -> None:
    """Writes an evaluation's record."""
    values = {f'eval_{name}': float(value) for name, value in values.items()}
    self._write(number, _number(tokens), values)
    texts = (f'{name} {value:.4f}' for name, value in values.items())
    self._progress.say('  '.join((f'step {number}', *texts)))

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Records the noted step; stops the clock of tokens/s while entered."""
    self._finish_pending()
    with self._clock.pause():
      yield

  def sync(self) -> None:
    """Flushes records and events to the disk."""
    if self._books:
      self._records.sync()
      for events in self._events:
        events.flush()

  def _finish_pending(self) -> None:
    if self._pending is None:
      return
    (number, tokens, values), self._pending = self._pending, None
    interrupt.wait(values)
    # Rows, not steps: a step of a large batch takes longer than a small one.
    self._clock.tick(self._schedule.row_of(number))
    if tokens is not None:
      tokens = _number(tokens)
      rate = self._clock.tokens_per_second(tokens)
      if number % self._config.log_every == 0:
        self._record(number, tokens, values, rate)
    self._watch.note(number, values)

  def _record(
    self,
    number: int,
    tokens: float,
    values: Mapping[str, jax.Array],
    rate: float | None,
  ) -> None:
    values = {name: float(v) for name, v in jax.device_get(values).items()}
    # A name with a slash belongs to a part of the step, such as the rows of a
    # source; the value is NaN if the step had no such part. When a loss
    # diverges, `loss` itself is NaN as well.
    values = {
      name: value
      for name, value in values.items()
      if '/' not in name or not math.isnan(value)
    }
    timing = {} if rate is None else {'tokens_per_second': rate}
    self._write(number, tokens, {**values, **timing})
    loss = values.get('loss')
    self._progress.update(
      number,
      '' if loss is None else f'loss {loss:.4f}',
      '' if rate is None else f'{progress_lib.short(rate)} tokens/s',
      left=self._clock.seconds_left(self._schedule.rows),
    )

  def _write(
    self, number: int, tokens: float, values: Mapping[str, float]
  ) -> None:
    if self._books:
      self._records.append(number, tokens, values)
      for events in self._events:
        events.append(number, values)


def _events(
  folder: pathlib.Path, last_step: int, progress: progress_lib.Progress
) -> list[Any]:
  """Returns the TensorBoard events to write; none without tensorboardX."""
  try:
    from kaiju_jax.training.records import tensorboard
  except ImportError:
    progress.say("No TensorBoard events: pip install 'kaiju_jax[report]'.")
    return []
  return [tensorboard.Events(folder, last_step)]


def _number(value: Any) -> float:
  """Returns a count's value, as an int if it is whole."""
  if isinstance(value, token_count.TokenCount):
    return token_count.to_int(value)
  value = jax.device_get(value).item()
  return int(value) if value == int(value) else value
