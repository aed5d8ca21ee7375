"""Notices that a run diverges, and ends it.

    diverged.json   in the workdir of a run that ended so, until it goes on

A single loss or gradient norm that is NaN or infinite may be an accident, from
which a run recovers. Three steps in succession with such a value end the run,
and so does a state that is not finite when a checkpoint is due: checkpoint.py
does not save it, and no step makes it finite again.

The values that are read are those of finished steps, copied to the host while
the next step runs. They are the same in all processes, which therefore stop
after the same step.
"""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import math
import pathlib
from typing import Any
from typing import NamedTuple

from kaiju_jax.sharding import processes
from kaiju_jax.storage import files
from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import workdir as workdir_lib

# In succession: what ends a run.
STEPS = 3
_WATCHED = 'loss', 'grad_norm'


class Diverged(ValueError):
  """The run has diverged and is ended; its last finite checkpoint is kept.

  Attributes:
    step: the first step with a value that is not finite.
  """

  def __init__(self, step: int, text: str):
    super().__init__(text)
    self.step = step


class _Sight(NamedTuple):
  step: int
  what: str
  learning_rate: float | None


class Watch:
  """Reads each step's values, and raises `Diverged` if need be.

  Args:
    experiment: the run's experiment.
    folder: its workdir.
    checkpoints: its checkpoints.
    say: prints a message for the user.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    folder: pathlib.Path,
    checkpoints: checkpoint.Checkpoints,
    say: Callable[[str], None],
  ):
    self._experiment, self._folder = experiment, folder
    self._checkpoints, self._say = checkpoints, say
    self._first: _Sight | None = None
    self._finite: tuple[int, float] | None = None
    if processes.is_main():
      (folder / workdir_lib.DIVERGED).unlink(missing_ok=True)

  def start_copies(self, values: Mapping[str, Any]) -> None:
    """Starts to copy what `note` will read to the host."""
    for name in _WATCHED:
      if hasattr(values.get(name), 'copy_to_host_async'):
        values[name].copy_to_host_async()

  def note(self, step: int, values: Mapping[str, Any]) -> None:
    """Reads a finished step's values.

    Raises:
      Diverged: the last steps' values are not finite.
    """
    found = {x: float(values[x]) for x in _WATCHED if x in values}
    bad = [x for x, value in found.items() if not math.isfinite(value)]
    if not bad:
      self._first = None
      if 'loss' in found:
        self._finite = step, found['loss']
      return
    if self._first is None:
      what = f'{bad[0]} is {found[bad[0]]}'
      self._first = self._see(step, what, values.get('learning_rate'))
    if step - self._first.step + 1 >= STEPS:
      raise self._end(self._first, f' and the {STEPS - 1} steps after it')

  def save(self, step: int, state: Any, batches: checkpoint.Positioned) -> None:
    """Starts to save a step's state.

    Raises:
      SaveError: as `Checkpoints.save`.
      Diverged: the state is not finite.
    """
    try:
      self._checkpoints.save(step, state, batches)
    except checkpoint.NonFiniteError as error:
      first = self._first or _Sight(step, str(error), None)
      raise self._end(first) from error

  def _see(self, step: int, what: str, learning_rate: Any) -> _Sight:
    rate = None if learning_rate is None else float(learning_rate)
    self._say(f'step {step}: {what}')
    return _Sight(step, what, rate)

  def _end(self, first: _Sight, until: str = '') -> Diverged:
    latest = self._checkpoints.find_latest()
    if processes.is_main():
      with contextlib.suppress(OSError):  # It would hide why the run ends.
        files.write_json(
          self._folder / workdir_lib.DIVERGED,
          {'step': first.step, 'what': first.what, 'checkpoint': latest},
        )
    lines = [
      f'{self._folder}: diverged at step {first.step}: {first.what} at that'
      f' step{until}{self._circumstances(first)}.'
    ]
    if latest is None:
      lines.append('No checkpoint was saved before it.')
    else:
      lines.append(f'The last finite checkpoint, of step {latest}, is kept.')
    lines.append(
      'Try a lower optimizer.learning_rate, a longer optimizer.warmup or a'
      ' lower optimizer.clip, or optimizer.skip_nonfinite=True if single'
      f' batches cause it, in another --workdir.{self._advise_branch(latest)}'
    )
    return Diverged(first.step, '\n'.join(lines))

  def _circumstances(self, first: _Sight) -> str:
    known = []
    if first.learning_rate is not None:
      known.append(f'learning rate {first.learning_rate:.3g}')
    if self._finite is not None:
      known.append('loss {1:.4f} at step {0}'.format(*self._finite))
    return f' ({", ".join(known)})' if known else ''

  def _advise_branch(self, latest: int | None) -> str:
    """Returns how a lower rate may begin at the last checkpoint, if it can."""
    is_whole = (
      not self._experiment.lora.rank
      and self._experiment.objective.name != 'attention_alignment'
    )
    if latest is None or not is_whole:
      return ''
    return (
      f' --config.loop.branch={self._folder}@{latest} begins with the'
      ' checkpoint, at another rate.'
    )
