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

from kaiju_jax.data import packing
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import config as config_lib
from kaiju_jax.training import divergence
from kaiju_jax.training import interrupt
from kaiju_jax.training import progress as progress_lib
from kaiju_jax.training import token_count
from kaiju_jax.training.records import metrics
from kaiju_jax.training.records import profile
from kaiju_jax.training.records import throughput
from kaiju_jax.training.records import trackers

_PEAK = 'peak_bytes_in_use'


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
    token_seconds: float = 0.0,
  ):
    """Opens the records, and the trackers of `config`.

    Args:
      folder, last_step: see the class.
      config: the loop's settings.
      progress: shows the latest record.
      schedule: the run's steps and their rows.
      watch: notices that the run diverges.
      token_seconds: seconds of a row token on one device at its peaks, for MFU;
        0 where they are unknown.
    """
    self._config = config
    self._watch = watch
    self._schedule = schedule
    self._progress = progress
    self._clock = throughput.Throughput()
    self._first = last_step + 1
    self._pending = None
    self._records = self._trackers = None
    self._token_seconds = token_seconds
    self._profile = profile.Profile(config, folder, self.pause, progress.say)
    if folder is not None:
      self._records = metrics.Records(folder, last_step)
      names = config_lib.trackers_of(config)
      self._trackers = trackers.Trackers(names, folder, last_step, progress.say)

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    # A second error (the disk is still full) would only hide the first.
    self._profile.close()
    if self._records:
      self._trackers.close()
      with contextlib.suppress(*([OSError] if kind else [])):
        self._records.close()

  def trace(self, number: int) -> contextlib.AbstractContextManager:
    """Returns the context in which a step is traced, if it shall be."""
    return self._profile.step(number)

  def step(
    self,
    number: int,
    tokens: Any,
    values: Mapping[str, jax.Array],
    batch: Any = None,
  ) -> None:
    """Notes a dispatched step, and records the one before once it is done."""
    self._finish_pending()
    wanted = number % self._config.log_every == 0 or number == self._first
    # A copy, because the state that `tokens` belongs to is donated.
    tokens = jax.tree.map(jnp.copy, tokens) if wanted else None
    if wanted and isinstance(batch, packing.Batch):
      count = values.get('microbatches', len(batch.source_BL))
      values = {**values, 'padding': _padding(batch.source_BL, count)}
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

  def save(self, step: int, state: Any, batches: Any) -> None:
    """Starts to save a step's state, its records first (`Watch.save`)."""
    with self.pause():
      self.sync()
      self._watch.save(step, state, batches)

  def sync(self) -> None:
    """Flushes records and events to the disk."""
    if self._records:
      self._records.sync()
      self._trackers.flush()

  def _finish_pending(self) -> None:
    if self._pending is None:
      return
    (number, tokens, values), self._pending = self._pending, None
    interrupt.wait(values)
    # Rows, not steps: a step of a large batch takes longer than a small one.
    self._clock.tick(self._schedule.row_of(number))
    if tokens is not None:
      devices = len(jax.tree.leaves(tokens)[0].sharding.device_set)
      tokens = _number(tokens)
      lap = self._clock.lap(number, tokens)
      if number % self._config.log_every == 0:
        self._record(number, tokens, values, lap, devices)
    self._watch.note(number, values)

  def _record(
    self,
    number: int,
    tokens: float,
    values: Mapping[str, jax.Array],
    lap: throughput.Lap | None,
    devices: int,
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
    timing = _peak_bytes()
    if lap is not None:
      rate = lap.tokens_per_second / devices
      timing |= {**lap._asdict(), 'tokens_per_second_per_device': rate}
      if self._token_seconds:
        timing['mfu'] = rate * self._token_seconds
    self._write(number, tokens, {**values, **timing})
    loss, pace = values.get('loss'), timing.get('tokens_per_second')
    self._progress.update(
      number,
      '' if loss is None else f'loss {loss:.4f}',
      '' if pace is None else f'{progress_lib.short(pace)} tokens/s',
      left=self._clock.seconds_left(self._schedule.rows),
    )

  def _write(
    self, number: int, tokens: float, values: Mapping[str, float]
  ) -> None:
    if self._records:
      self._records.append(number, tokens, values)
      self._trackers.append(number, tokens, values)


@jax.jit
def _padding(source_ABL: jax.Array, count: jax.Array | int) -> jax.Array:
  """Returns the share of the first `count` microbatches without tokens."""
  padding_A = jnp.sum(source_ABL < 0, (1, 2))
  is_read_A = jnp.arange(len(source_ABL)) < count
  places = source_ABL.size // len(source_ABL) * count
  return jnp.where(is_read_A, padding_A, 0).sum() / places


def _peak_bytes() -> dict[str, int]:
  """Returns the most memory that a local device had in use, if it says so."""
  known = (device.memory_stats() or {} for device in jax.local_devices())
  peaks = [one[_PEAK] for one in known if _PEAK in one]
  return {'peak_bytes': max(peaks)} if peaks else {}


def _number(value: Any) -> float:
  """Returns a count's value, as an int if it is whole."""
  if isinstance(value, token_count.TokenCount):
    return token_count.to_int(value)
  value = jax.device_get(value).item()
  return int(value) if value == int(value) else value
