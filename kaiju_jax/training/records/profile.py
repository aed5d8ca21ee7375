"""Writes a trace of some steps of a run, of devices and host.

`loop.profile='100:3'` traces steps 100 to 102 into WORKDIR/profile, for xprof,
TensorBoard's profile plugin, or Perfetto (the .trace.json.gz). A run that
resumes behind step 100 traces nothing. A trace that fails stops no run.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import pathlib

import jax

from kaiju_jax.training import config as config_lib

FOLDER = 'profile'


class Profile:
  """The trace of the steps that `loop.profile` names; closing ends it.

  Args:
    config: the loop's settings.
    folder: the workdir; None traces nothing.
    pause: a context that waits for the steps before, with the clock stopped.
    say: prints a line for the user.
  """

  def __init__(
    self,
    config: config_lib.LoopConfig,
    folder: pathlib.Path | None,
    pause: Callable[[], contextlib.AbstractContextManager],
    say: Callable[[str], None],
  ):
    self._steps = config_lib.profiled_steps(config) if folder else range(0)
    self._folder, self._pause, self._say = folder, pause, say
    self._runs = False

  def close(self) -> None:
    """Ends a trace whose last step did not come."""
    if self._runs:
      self._end()

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """Traces what happens while entered, if it is one of the steps."""
    if self._steps and number == self._steps[0]:
      with self._pause():
        self._begin()
    if not self._runs:
      yield
      return
    with jax.profiler.StepTraceAnnotation('train', step_num=number):
      yield
    if number == self._steps[-1]:
      with self._pause():
        self._end()

  def _begin(self) -> None:
    try:
      jax.profiler.start_trace(str(self._folder / FOLDER))
      self._runs = True
    except Exception as error:  # Whatever a profiler's plugin raises.
      self._say(f'profile: {error} The run goes on without it.')

  def _end(self) -> None:
    self._runs = False
    try:
      jax.profiler.stop_trace()
      self._say(f'profile: {self._folder / FOLDER}')
    except Exception as error:
      self._say(f'profile: {error} The run goes on without it.')
