"""Runs that begin with a model of other authors: a folder, or its import."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from experiments.configs import preference
from experiments.configs import sft
from kaiju_jax.classifiers import settings as settings_lib
from kaiju_jax.classifiers import span_head
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.runs import begin
from kaiju_jax.runs import defaults
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.runs import train
from kaiju_jax.runs import uptrain
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.tasks import conversations
from tests.interchange import family_folders
from tests.interchange import gguf_files
from tests.interchange.templates import shapes
from tests.runs import toys

pytestmark = pytest.mark.usefixtures('user_cache')


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp('begin')
  made = toys.add_chat(toys.write_folder(root / 'folder'), temperature=0.5)
  exchange.read(made, root / 'export')
  write_gguf(root, json.loads((made / 'config.json').read_text()))
  chat = [
    {'role': 'user', 'content': 'z'},
    {'role': 'assistant', 'content': 'a'},
  ]
  (root / 'chats.jsonl').write_text(f'{json.dumps({"messages": chat})}\n' * 4)
  return root


def write_gguf(root, fields):
  """Writes the folder's model as a GGUF file, with its tokens and template."""
  content = json.loads(shapes.byte_tokenizer())
  added = {one['content']: one['id'] for one in content['added_tokens']}
  vocabulary = content['model']['vocab'] | added
  tokens = [*sorted(vocabulary, key=vocabulary.get), 'ab']
  own = {
    'model': 'gpt2',
    'pre': 'gpt-2',
    'tokens': tokens,
    'token_type': [3 if one in added else 1 for one in tokens],
    'merges': ['a b'],
    'bos_token_id': vocabulary['<s>'],
    'eos_token_id': vocabulary['</s>'],
  }
  gguf_files.write(
    root / 'model.gguf',
    'llama',
    {
      **gguf_files.metadata_of(fields),
      'llama.rope.freq_base': 500.0,
      'tokenizer.chat_template': shapes.TEMPLATES['turns'],
      **{f'tokenizer.ggml.{key}': value for key, value in own.items()},
    },
    gguf_files.tensors_of(fields, family_folders.tensors_of(fields)),
  )


def experiment_of(folders, name, config=sft):
  one = config.get_config(str(folders / name))
  one.data.path = str(folders / 'chats.jsonl')
  one.data.length, one.loop.steps = 32, 1
  one.loop.evaluate_every = one.loop.checkpoint_every = 1
  return one


@pytest.mark.parametrize(
  'name',
  ['folder', 'model.gguf', pytest.param('export', marks=pytest.mark.slow)],
)
def test_a_config_takes_what_the_model_comes_with(folders, name):
  experiment = experiment_of(folders, name)
  whole = load.from_anywhere(folders / name)
  assert experiment.model == whole.config
  assert experiment.model.quantization.kv == 'none'
  assert experiment.data.tokenizer == whole.tokenizer != ''
  assert experiment.optimizer.z_reg.attention == 0
  # The folder's template, not our own.
  format = conversations.format_of(experiment)
  assert format.name == 'template'
  train.check(experiment)
  started = begin.params(experiment, folders / name, mesh_lib.single())
  pairs = jax.tree.map(np.array_equal, started, whole.params)
  assert all(jax.tree.leaves(pairs))
  head = span_head.make(
    folders / name, 'spans.jsonl', ['one'], settings_lib.Spans(rate=0.5)
  )
  assert head.model == whole.config and head.optimizer.z_reg.attention == 0
  assert head.data.chat_template == experiment.data.chat_template
  assert head.data.tokenizer == whole.tokenizer
  assert head.optimizer.learning_rate == 0.5
  liked = experiment_of(folders, name, preference)
  assert liked.objective.name == 'preference' and liked.model == whole.config


@pytest.mark.slow
def test_a_run_that_began_with_a_folder_speaks_as_the_folder(folders, tmp_path):
  experiment = experiment_of(folders, 'folder')
  train.train(experiment, tmp_path / 'run')
  found = load.from_workdir(tmp_path / 'run')
  assert found.config == experiment.model
  exchange.export(tmp_path / 'run', tmp_path / 'out', format='kaiju')
  wanted = speech_of(folders / 'folder')
  assert wanted[0] and wanted[2] == {'temperature': 0.5}
  assert speech_of(tmp_path / 'run') == wanted
  assert speech_of(tmp_path / 'out') == wanted


def speech_of(path):
  """Returns a model's template, stop tokens and settings of sampling."""
  loaded = load.from_anywhere(path)
  tokenizer = tokenizer_lib.load(loaded.tokenizer, loaded.config.vocab_size)
  found = defaults.read(loaded, tokenizer)
  stops = found.format.stop_tokens
  return found.format.digest, stops, found.generation.sampling


@pytest.mark.parametrize('name', ['folder', 'model.gguf'])
def test_a_student_speaks_as_its_teacher(folders, tmp_path, name):
  uptrain.write(folders / name, tmp_path / 'student')
  wanted = speech_of(folders / name)
  assert speech_of(tmp_path / 'student') == wanted
  # So does a run that begins with it.
  run = ablate.resolve(f'{tmp_path}/student/config.py', [])
  assert run.data.chat_template == str(tmp_path / 'student')
  assert conversations.format_of(run).digest == wanted[0]
  described = load.describe(tmp_path / 'student')
  assert described.chats == str(tmp_path / 'student')


@pytest.mark.slow
def test_adapters_stand_beside_the_codes_of_a_folder(folders, tmp_path):
  experiment = experiment_of(folders, 'folder')
  experiment.lora = dataclasses.replace(experiment.lora, rank=2)
  train.train(experiment, tmp_path / 'run')
  found = load.from_workdir(tmp_path / 'run')
  assert found.config.quantization.matmul == 'int8'
  assert found.tokenizer


@pytest.mark.parametrize('config', [sft, preference])
def test_where_there_is_no_model_the_path_is_named(config, tmp_path):
  with pytest.raises(FileNotFoundError, match=f'{tmp_path}/none'):
    config.get_config(str(tmp_path / 'none'))
