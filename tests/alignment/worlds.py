"""A model of a few bytes' replies that learns to ask back."""

import json
import pathlib

from kaiju_jax.alignment import config
from kaiju_jax.alignment import guards
from kaiju_jax.runs import train
from kaiju_jax.training import experiment as experiment_lib
from tests import toys

LENGTH = 96
REPLIES = 'a', 'b?', 'cc', 'd?'


def write_lines(path: pathlib.Path, records) -> str:
  path.write_text(''.join(f'{json.dumps(one)}\n' for one in records))
  return str(path)


def read_lines(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def asked(number: int) -> dict:
  return {'role': 'user', 'content': f'z{number % 8}'}


def write_prompts(path: pathlib.Path, count: int = 16) -> str:
  return write_lines(path, ({'messages': [asked(n)]} for n in range(count)))


def experiment(path: str, length: int = LENGTH) -> experiment_lib.Experiment:
  one = toys.tiny_chat_experiment(path, length)
  one.optimizer.learning_rate, one.optimizer.warmup = 1e-2, 0.0
  one.loop.log_every = one.loop.steps = 60
  one.loop.checkpoint_every = 60
  return one


def make_first(
  folder: pathlib.Path, length: int = LENGTH, steps: int = 60
) -> str:
  """Trains a model that gives each of the replies, and ends them."""
  lines = (
    {
      'messages': [
        asked(n),
        {'role': 'assistant', 'content': REPLIES[n // 8 % 4]},
      ]
    }
    for n in range(32)
  )
  path = write_lines(folder / 'chats.jsonl', lines)
  one = experiment(path, length)
  one.loop.steps = steps
  train.train(one, folder / 'first')
  return str(folder / 'first')


def training(first: str, length: int = LENGTH) -> experiment_lib.Experiment:
  """Returns the training of a round."""
  one = experiment('', length)
  one.begin_with = first
  one.data.task, one.objective.name = 'choices', 'preference'
  one.optimizer.schedule = 'constant'
  one.optimizer.learning_rate = 2e-3
  one.loop.steps, one.loop.log_every, one.loop.checkpoint_every = 3, 1, 1
  return one


def settings(first: str, prompts: str, **fields) -> config.Settings:
  given = dict(rounds=2, groups=6, swipes=3, tokens=6, held_out=8, watched=4)
  user = fields.pop('user', 'planted:question')
  # So small a model does not end all that it says.
  fields.setdefault('limits', guards.Limits(cut=0.9))
  return config.Settings(first, prompts, user, **{**given, **fields})


class Killed(BaseException):
  pass


def kill(function, is_there):
  def call(*args, **kwargs):
    if is_there(*args, **kwargs):
      raise Killed
    return function(*args, **kwargs)

  return call


def contents(out):
  """Returns what a folder of rounds holds, but times and logs."""
  names = sorted(
    str(one.relative_to(out))
    for pattern in ('*.jsonl', '*.json', '*.npz')
    for one in [*out.glob(pattern), *out.glob(f'rounds/*/{pattern}')]
  )
  return {name: (out / name).read_bytes() for name in names}
