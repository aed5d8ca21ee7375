"""Finds the layout of a student whose keys and values fit a budget of bytes.

Held-out loss does not see retrieval: windows of the very layers that look
things up cost it little. So a layout is judged by both, at 0 tokens, on rows of
the person's own held-out text with a needle in each: a sentence with a number
that is asked for at the row's end, of a model that chats in every other row by
a question in its chat template (`tasks/needle/trial_rows.py`).

    damage = loss per token of text + loss per token of the answers

A student that answers better than its teacher does so by chance, on these few
needles, so that the second loss counts from the teacher's on. The needles are
those of several draws that the teacher finds best.

The search goes down from the teacher's layers. A step is one change: a layer
becomes local, two neighbours share keys and values, or all layers have fewer
heads. Each is measured once by itself; then the one with the least damage per
byte saved is measured again beside those before, and taken if it is still the
least. A change seldom costs less beside others than alone, so that most are
never measured again. Last, other windows and numbers of sinks are measured with
the layers found, and taken if neither loss is worse by them: short windows find
needles better in some models, at a price in text that nobody may want to pay.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

from kaiju_jax.costs import footprint
from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange.surgery import calibrate
from kaiju_jax.interchange.surgery import check
from kaiju_jax.interchange.surgery import pool
from kaiju_jax.interchange.surgery import trial
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.tasks.needle import trial_rows
from kaiju_jax.training import progress

# Tokens of the text that merged layers and heads are fitted to.
CALIBRATED = 32_000
# Of local layers; the first is searched with.
WINDOWS = (256, 64, 128, 512, 1024)
SINKS = (4, 0, 1)


class State(NamedTuple):
  """What the search changes of a teacher."""

  layers: tuple[layers_lib.Layer, ...]
  heads: int  # U.


class Point(NamedTuple):
  """A measured state."""

  state: State
  bytes: int
  reading: trial.Reading

  def losses(self, teacher: trial.Reading) -> tuple[float, float]:
    """Returns the losses of text and answers, these at least the teacher's."""
    return self.reading.loss, max(self.reading.needle, teacher.needle)

  def damage(self, teacher: trial.Reading) -> float:
    """Returns the sum of both losses."""
    return sum(self.losses(teacher))


def choose(
  best: Point, others: Sequence[Point], teacher: trial.Reading
) -> Point:
  """Returns the least damage of what is in neither loss worse than the best."""
  limits = best.losses(teacher)
  kept = [
    one
    for one in others
    if all(a <= b for a, b in zip(one.losses(teacher), limits))
  ]
  return min([best, *kept], key=lambda one: (one.damage(teacher), one.bytes))


Change = tuple[str, *tuple[int, ...]]
Read = Callable[[State, bool], trial.Reading]


def descend(
  start: State,
  budget: int,
  changes: Callable[[State], Mapping[Change, State]],
  size: Callable[[State], int],
  read: Read,
) -> list[Point]:
  """Returns the states on the way to the budget, the first one included.

  Args:
    start: the first state.
    budget: bytes that the last one may take.
    changes: the states one change away, by the change.
    size: the bytes of a state.
    read: measures a state; True keeps it for those measured next.

  Raises:
    ValueError: no change is left and the budget is not met.
  """
  path = [Point(start, size(start), read(start, True))]
  teacher = path[0].reading
  cost: dict[Change, float] = {}
  while path[-1].bytes > budget:
    here = path[-1]
    ahead = {
      change: state
      for change, state in changes(here.state).items()
      if size(state) < here.bytes
    }
    if not ahead:
      raise ValueError(f'no layout is as small as {budget:,} bytes.')
    measured: dict[Change, Point] = {}
    while True:
      # What was never measured comes first.
      best = min(
        ahead,
        key=lambda change: (
          change in cost,
          cost.get(change, 0.0) / (here.bytes - size(ahead[change])),
          change,
        ),
      )
      if best in measured:
        break
      state = ahead[best]
      measured[best] = Point(state, size(state), read(state, False))
      cost[best] = measured[best].damage(teacher) - here.damage(teacher)
    path.append(measured[best])
    del cost[best]
    if path[-1].bytes > budget:
      read(path[-1].state, True)
  return path


def list_changes(
  state: State,
  window: int,
  sinks: int,
  is_allowed: Callable[[State], bool] = lambda state: True,
) -> dict[Change, State]:
  """Returns the states one change away from a state.

  Args:
    state: the state.
    window: of the layers that become local.
    sinks: likewise.
    is_allowed: whether a student may have a state.
  """
  layers, found = state.layers, {}
  groups: dict[int, list[int]] = {}
  for index, layer in enumerate(layers):
    groups.setdefault(layer.kv_from, []).append(index)
  for owner, readers in groups.items():
    if layers[owner].window is None and layers[owner].turned:
      found['local', owner] = _changed(
        state, readers, window=window, sinks=sinks
      )
    # Pairs of adjacent layers; none has a third.
    other = owner + 1
    is_pair = groups.get(other) == [other]
    if is_pair and _kind(layers[owner]) == _kind(layers[other]):
      found['share', owner, other] = _changed(state, [other], kv_from=owner)
  for heads in range(state.heads - 1, 0, -1):
    if state.heads % heads == 0:
      found['heads', heads] = state._replace(heads=heads)
  return {change: one for change, one in found.items() if is_allowed(one)}


def _kind(layer: layers_lib.Layer):
  return dataclasses.replace(layer, kv_from=0)


def _changed(state: State, which: Sequence[int], **fields) -> State:
  layers = list(state.layers)
  for index in which:
    layers[index] = dataclasses.replace(layers[index], **fields)
  return state._replace(layers=tuple(layers))


class Search:
  """The students of a teacher, as the search changes and measures them."""

  def __init__(
    self,
    teacher: model_config.ModelConfig,
    config_of: Callable[[State], model_config.ModelConfig],
    length: int,
  ):
    """Compiles nothing.

    Args:
      teacher: the teacher's config.
      config_of: returns the student's config of a state.
      length: tokens of the conversation whose bytes count.
    """
    self._teacher = teacher
    self._config_of = config_of
    self._length = length
    self.start: State = State(teacher.layers(), teacher.num_kv_heads)

  def size(self, state: State) -> int:
    """Returns the KV bytes of a conversation."""
    return footprint.kv_caches(self._config_of(state), self._length)[0].bytes

  def changes(self, state: State, window: int) -> dict[Change, State]:
    """Returns the students one change away."""
    return list_changes(state, window, SINKS[0], self._is_allowed)

  def _is_allowed(self, state: State) -> bool:
    try:
      check.check(self._teacher, self._config_of(state))
    except ValueError:
      return False
    return True

  def check(self, budget: int, windows: Sequence[int]) -> Sequence[int]:
    """Returns the windows, one with which a layout meets the budget first.

    Raises:
      ValueError: no layout meets it; or the teacher is no start.
    """
    check.check(self._teacher, self._config_of(self.start))
    if not 1 <= self._length <= self._teacher.max_length:
      raise ValueError(
        f'kv_length={self._length}: must be 1…{self._teacher.max_length}, what'
        ' the teacher can read.'
      )
    least = []
    for window in windows:
      state = self.start
      while ahead := self.changes(state, window):
        state = min(ahead.values(), key=self.size)
      if self.size(state) <= budget:
        return window, *(other for other in windows if other != window)
      least.append(state)
    smallest = min(least, key=self.size)
    raise ValueError(
      f'kv_budget={budget:,}: no layout meets it; the smallest'
      f' ({_words(smallest)}) takes {self.size(smallest):,} bytes at'
      f' {self._length:,} tokens.'
    )

  def run(
    self,
    weights: plain_lib.Plain,
    statistics: calibrate.Statistics,
    draws: Sequence[trial.Rows],
    budget: int,
    windows: Sequence[int],
  ) -> tuple[State, list[str]]:
    """Returns the layout that was found, and lines for the user.

    Args:
      weights: the teacher's.
      statistics: the teacher's, with all pairs of adjacent layers.
      draws: of rows; every student is measured on those whose needles the
        teacher finds best.
      budget: bytes that the layout may take.
      windows: of local layers, as `check` returns them.
    """
    fits = trial.Fits(weights, self._teacher, statistics)
    kv = self._config_of(self.start).quantization.kv
    trials, rows, in_floats = self._choose(weights, draws, fits)

    def student(state: State) -> trial.Student:
      return fits.student(state.layers, state.heads, kv)

    shown = progress.Progress('layouts')

    def read(state: State, keep: bool) -> trial.Reading:
      reading = trials.read(student(state), keep)
      shown.say(_line(_words(state), self.size(state), reading))
      return reading

    def point(state: State) -> Point:
      return Point(state, self.size(state), read(state, False))

    path = descend(
      self.start,
      budget,
      lambda state: self.changes(state, windows[0]),
      self.size,
      read,
    )
    best = path[-1]
    read(best.state, True)
    others = [
      point(state)
      for state in _other_windows(best.state, windows)
      if self.size(state) <= budget
    ]
    teacher = path[0].reading
    found = choose(best, others, teacher)
    answers = int(rows.is_answer_BL.sum())
    lines = [
      f'  {int(rows.is_text_BL.sum()):,} tokens of held-out text;'
      f' {trial_rows.ROWS} needles, {answers} tokens of answers',
      _HEAD.format(length=self._length),
      _line('teacher in floats', None, in_floats),
      *(_line(_words(one.state), one.bytes, one.reading) for one in path),
      '  other windows and sinks:',
      *(_line(_words(one.state), one.bytes, one.reading) for one in others),
      '  beside it:',
    ]
    period = _by_period(found.state)
    if period is not None:
      beside = point(period)
      lines.append(_line('global by period', beside.bytes, beside.reading))
    layers = self.start.layers
    means = tuple(
      pool.pool_layer(weights.layers, layers, index, heads=1)
      for index in range(len(layers))
    )
    means = trial.Student(layers, means, 1, kv)
    size = self.size(self.start._replace(heads=1))
    lines.append(_line('one head, the mean', size, trials.read(means)))
    return found.state, lines

  def _choose(self, weights, draws: Sequence[trial.Rows], fits: trial.Fits):
    """Returns trials and rows of the teacher’s best draw, and its reading."""
    teacher = fits.student(*self.start)
    made = [trial.Trials(weights, self._teacher, rows) for rows in draws]
    readings = [one.read(teacher) for one in made]
    best = min(range(len(draws)), key=lambda n: readings[n].needle)
    return made[best], draws[best], readings[best]


_HEAD = '   KV bytes at {length:,}    loss  needle   right'


def _line(name: str, size: int | None, reading: trial.Reading) -> str:
  """Returns a row of the frontier."""
  size = '' if size is None else f'{size:,}'
  return (
    f'  {size:>14}  {reading.loss:6.3f}  {reading.needle:6.3f}'
    f'  {reading.right:6}  {name}'
  )


def _words(state: State) -> str:
  """Returns a state in words."""
  local = [one for one in state.layers if one.window is not None]
  seen = {f'{one.window}+{one.sinks}' for one in local}
  shared = len(state.layers) - len(layers_lib.owners(state.layers))
  globals_ = [i for i, one in enumerate(state.layers) if one.window is None]
  words = [f'global {",".join(map(str, globals_)) or "none"}']
  if not local:
    words = ['all global']
  if local:
    words.append(f'windows {", ".join(sorted(seen))}')
  if shared:
    words.append(f'{shared} share')
  return '; '.join([*words, f'{state.heads} heads'])


def _other_windows(state: State, windows: Sequence[int]) -> list[State]:
  """Returns the state with other windows, and with other sinks."""
  local = [i for i, one in enumerate(state.layers) if one.window == windows[0]]
  if not local:
    return []
  return [
    *(_changed(state, local, window=window) for window in windows[1:]),
    *(_changed(state, local, sinks=sinks) for sinks in SINKS[1:]),
  ]


def _by_period(state: State) -> State | None:
  """Returns as many global layers, evenly spaced and not shared."""
  local = [one for one in state.layers if one.window is not None]
  count = len(state.layers) - len(local)
  if not local or not count:
    return None
  depth = len(state.layers)
  places = {depth * (n + 1) // count - 1 for n in range(count)}
  return state._replace(
    layers=tuple(
      layers_lib.Layer(None, i)
      if i in places
      else dataclasses.replace(local[0], kv_from=i)
      for i in range(depth)
    )
  )
