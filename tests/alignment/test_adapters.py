"""Rounds that train adapters beside an open model's codes."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from kaiju_jax.alignment import rounds
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer
from kaiju_jax.model import lora
from kaiju_jax.runs import load
from kaiju_jax.training import config as training_config
from kaiju_jax.training.records import journal
from tests.alignment import worlds
from tests.interchange import family_folders

pytestmark = pytest.mark.slow

SAID = 'ab?'


def write_open(path: pathlib.Path) -> str:
  """Writes a folder of Qwen3's shape whose replies are letters of `SAID`.

  All embeddings share a large value, so that the head's first column acts as a
  bias: other bytes are hardly ever drawn, and a reply ends soon.
  """
  fields = family_folders.fields_of('qwen3') | {
    'vocab_size': 256, 'hidden_size': 32, 'max_position_embeddings': 96,
  }  # fmt: skip
  tensors = family_folders.tensors_of(fields)
  tensors['model.embed_tokens.weight'][:, 0] = 8.0
  tensors['model.norm.weight'][:] = 1.0
  bias_V = np.full(256, -3.0, np.float32)
  bias_V[list(SAID.encode())] = 1.0, 1.0, 0.7
  ends = chat.format_of(tokenizer.load('')).stop_tokens
  bias_V[list(ends)] = 0.5
  tensors['lm_head.weight'][:, 0] = bias_V
  return str(family_folders.write(path, fields, tensors))


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  folder = tmp_path_factory.mktemp('open')
  prompts = worlds.write_prompts(folder / 'prompts.jsonl', 48)
  return write_open(folder / 'qwen3'), prompts


def play(world, out):
  model, prompts = world
  training = worlds.training(model)
  training.model.dtype = 'float32'
  training.lora = training_config.LoraConfig(rank=4, alpha=8.0)
  training.optimizer.learning_rate = 2e-3
  training.loop.steps = 6
  settings = worlds.settings(
    model, prompts, rounds=3, groups=12, swipes=4, tokens=12, held_out=24,
    watched=12, is_guarded=False,
  )  # fmt: skip
  return rounds.run(settings, training, out)


@pytest.mark.timeout(900)
def test_adapters_learn_in_rounds_and_resume_to_the_same_bytes(
  world, tmp_path, monkeypatch
):
  out = tmp_path / 'rounds'
  report = play(world, out)
  assert (report['good'], report['stop']) == (3, '')
  base = load.base(world[0], 'float32')
  kl = []
  for number, record in enumerate(report['rounds'], 1):
    run = out / 'rounds' / f'{number:02d}' / 'run'
    found = load.from_workdir(run)
    trained, frozen = lora.split(found.params)
    assert found.config.qk_norm == 'head' and trained
    assert set(frozen) > set(trained)
    before = out / f'rounds/0{number - 1}/run' if number > 1 else world[0]
    assert found.experiment.begin_with == str(before)
    assert found.origin.endswith(f'beside {world[0]}')
    assert record['codes_moved'] == 0
    # Its logits are another author's: nothing pulls them towards zero.
    z_reg = found.experiment.optimizer.z_reg
    assert z_reg.attention == z_reg.logits == 0
    kl.append(record['kl'])
  assert kl[2] > kl[0] >= -0.5
  assert kl[2] > 0.2
  # The first model has the base's logits, and the last one asks more often.
  described = json.loads((out / 'align.json').read_text())
  assert described['model_digest'] == load.digest(base)
  asked = share(out / 'held_out.jsonl'), share(out / 'rounds/03/last.jsonl')
  assert asked[1] > asked[0] + 0.15
  assert report['win']['wins'] > report['win']['losses']

  again = tmp_path / 'again'
  steps = itertools.count(1)
  with monkeypatch.context() as patch:
    # In the second round, after its second step's checkpoint.
    kill = worlds.kill(journal.Journal.step, lambda *_: next(steps) == 5)
    patch.setattr(journal.Journal, 'step', kill)
    with pytest.raises(worlds.Killed):
      play(world, again)
  assert (again / 'rounds/02').exists()
  assert not (again / 'rounds/02/round.json').exists()
  play(world, again)
  assert worlds.contents(again) == worlds.contents(out)


def share(path: pathlib.Path) -> float:
  """Returns the share of a file's replies that ask something."""
  found = worlds.read_lines(path)
  said = [one['replies'][0] if 'replies' in one else one for one in found]
  return np.mean(['?' in one['content'] for one in said])


def test_a_model_without_masters_needs_adapters(world, tmp_path):
  settings = worlds.settings(*world)
  with pytest.raises(ValueError, match=r'is no workdir.*\(--rank=16\)'):
    rounds.run(settings, worlds.training(world[0]), tmp_path / 'rounds')
  training = worlds.training(world[0])
  training.lora = training_config.LoraConfig(rank=4, matrices='w_x')
  with pytest.raises(ValueError, match="'w_x' names no weight"):
    rounds.run(settings, training, tmp_path / 'rounds')
  assert not (tmp_path / 'rounds').exists()
