"""A dataclass is a command's flags: names, types, bounds, defaults and help."""

import dataclasses
import sys
from typing import Annotated
from typing import Literal
from typing import NamedTuple

from absl import app
from absl import flags as absl_flags
import pytest

from kaiju_jax.runs import flags
from kaiju_jax.training import experiment as experiment_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """How products are computed."""

  # What is int8: nothing, weights, or
  # weights and activations.
  int8: Literal['none', 'weights', 'all'] = 'all'
  kv: str = ''


class Start(NamedTuple):
  """How a run begins."""

  # Steps before the first.
  warmup: int = 3


START = Start()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """A command's settings, one of each kind."""

  # Where the model lies.
  model: str
  # Replies at once.
  rows: flags.Positive = 8
  length: Annotated[int | None, flags.Bounds(2, 100)] = None
  confidence: flags.Confidence = 0.95
  ahead: bool = False
  raise_: bool = True
  arm: Arm = Arm()
  baseline: Annotated[Arm, flags.Prefix('baseline_')] = Arm(int8='none')
  start: Start = START
  seeds: flags.Seeds = (0, 1)
  rates: Annotated[
    tuple[float, ...], flags.Numbers(2, 'a line needs two', below=1.0)
  ] = (0.5, 0.25)
  arms: tuple[Literal['a', 'b'], ...] | None = None
  words: tuple[str, ...] = ()
  prompt: flags.Repeated = ()
  config: Annotated[experiment_lib.Experiment, flags.Config('tiny')] = (
    None  # Not on its own line.
  )


def read(*words, settings=Settings):
  values = absl_flags.FlagValues()
  made = flags.flags_of(settings, values=values)
  left = values(['command', *words])
  return made.read(left), made, values


def test_defaults_are_the_fields_own():
  found, made, _ = read('--model=m')
  assert found.config.data.task == 'text'
  assert dataclasses.replace(found, config=None) == Settings(
    model='m', rates=(0.25, 0.5)
  )
  assert made.list_given() == {'model'}


def test_every_kind_is_read(monkeypatch):
  # What --config overrides, its flag looks up here.
  monkeypatch.setattr(sys, 'argv', ['command', '--config.seed=7'])
  found, made, _ = read(
    *('--model=m', '--rows=3', '--length=7', '--ahead', '--noraise'),
    *('--int8=weights', '--baseline_kv=none', '--seeds=4,1', '--warmup=5'),
    *('--rates=.5,.1,.5', '--arms=b,a,b', '--words=x,y'),
    *('--prompt=one, two', '--prompt=three', '--config.seed=7'),
  )
  assert found.rows == 3 and found.length == 7
  assert found.ahead and not found.raise_
  assert found.arm == Arm(int8='weights') and found.start == Start(5)
  assert found.baseline == Arm(int8='none', kv='none')
  assert found.seeds == (4, 1)
  assert found.rates == (0.1, 0.5)
  assert found.arms == ('b', 'a')
  assert found.words == ('x', 'y')
  assert found.prompt == ('one, two', 'three')
  assert found.config.seed == 7
  assert {'rows', 'noraise', 'raise', 'baseline_kv'} & made.list_given() == {
    *('rows', 'raise', 'baseline_kv')
  }


def test_a_comment_is_the_help():
  values = read('--model=m')[2]
  assert values['model'].help == 'Where the model lies.'
  assert values['int8'].help.endswith(
    'What is int8: nothing, weights, or weights and activations.'
  )
  assert values['baseline_int8'].help == values['int8'].help
  assert values['kv'].help == '(no help available)'


@pytest.mark.parametrize(
  'words, error, message',
  [
    ([], app.UsageError, '--model is missing'),
    (['--model='], app.UsageError, '--model is missing'),
    (['--model=m', 'more'], app.UsageError, 'unexpected arguments: more'),
    (['--rows=0'], absl_flags.IllegalFlagValueError, '--rows=0'),
    (['--length=101'], absl_flags.IllegalFlagValueError, '--length=101'),
    (['--int8=x'], absl_flags.IllegalFlagValueError, '--int8=x'),
    (['--model=m', '--confidence=1'], ValueError, '--confidence=1.0'),
    (['--model=m', '--seeds=-1'], ValueError, "--seeds: '-1'"),
    (['--model=m', '--seeds='], ValueError, '--seeds needs'),
    (['--model=m', '--seeds=4,1,04'], ValueError, '--seeds=4,1,04: has 4 tw'),
    (['--model=m', '--rates=.5'], ValueError, '--rates=.5: a line needs two'),
    (['--model=m', '--rates=.5,1'], ValueError, "--rates: '1'"),
    (['--model=m', '--rates=.5,x'], ValueError, "--rates: 'x'"),
    (['--model=m', '--arms=c'], ValueError, "--arms: 'c' is not one of a, b"),
    (['--model=m', '--arms='], ValueError, '--arms needs'),
  ],
)
def test_what_is_wrong_names_the_flag(words, error, message):
  with pytest.raises(error) as caught:
    read(*words)
  assert message in str(caught.value)


def test_without_source_there_is_no_help():
  made = dataclasses.make_dataclass('Made', [('rows', int, 3)])
  found, _, values = read(settings=made)
  assert found.rows == 3 and 'no help' in values['rows'].help


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modes:
  """A command with two modes, and what turns parts of them on."""

  # Check a folder instead.
  check: str = ''
  # With --check: a text.
  text: str = ''
  # How a run begins.
  start: Literal['mean', 'fitted'] = 'mean'
  # With --start=fitted: tokens of the fit.
  tokens: int = 8


def test_a_flag_is_refused_without_what_turns_it_on():
  for words in (), ('--check=a', '--text=b'), ('--start=fitted', '--tokens=8'):
    read(*words, settings=Modes)
  for words, message in (
    (['--text=b'], '--text=b: has no effect without --check.'),
    (['--tokens=8'], '--tokens=8: has no effect without --start=fitted.'),
  ):
    with pytest.raises(ValueError) as error:
      read(*words, settings=Modes)
    assert str(error.value) == message
