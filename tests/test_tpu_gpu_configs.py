"""Accelerator files: data that loads without jax, and launchers that parse."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from experiments.configs import sizes
from kaiju_jax.model import presets
from kaiju_jax.training import fit
import tpu_gpu_configs

_LAUNCH = pathlib.Path(tpu_gpu_configs.__file__).parent / 'launch'
_COMMAND = 'python -m experiments.train'


@pytest.mark.parametrize('name', tpu_gpu_configs.names())
def test_a_file_is_consistent(name):
  slice_ = tpu_gpu_configs.load(name)
  assert slice_.name == name
  platform, _, count = name.partition('_')
  # v5p is named after its TensorCores, of which a chip has two.
  assert slice_.devices == int(count) // (2 if platform == 'v5p' else 1)


@pytest.mark.parametrize(
  ('preset', 'name'),
  [
    ('13b', 'h100_64'),
    ('34b', 'h100_128'),
    ('110b', 'h100_512'),
    ('110b', 'h100_4096'),
    ('13b', 'v5p_256'),
    ('34b', 'v5p_512'),
    ('110b', 'v5p_1024'),
    ('13b', 'v6e_256'),
    ('3b', 'h100_8'),
    ('3b', 'v5p_128'),
    ('3b', 'v5e_256'),
  ],
)
def test_a_preset_divides_over_its_slice(preset, name):
  model, mesh = presets.preset(preset), tpu_gpu_configs.load(name).mesh
  assert model.d_model % (8 * mesh.fsdp) == 0
  for size in (model.num_heads, model.d_ff, model.vocab_size):
    assert size % mesh.tensor == 0


def test_an_unknown_slice_lists_the_known():
  with pytest.raises(ValueError, match=r"'b200_8'.*cpu_8, h100_128, .*v6e_256"):
    tpu_gpu_configs.load('b200_8')


def test_no_jax_is_imported():
  code = (
    'import sys, tpu_gpu_configs\n'
    'for name in tpu_gpu_configs.names(): tpu_gpu_configs.load(name)\n'
    "print([m for m in ('jax', 'flax', 'kaiju_jax.model') if m in sys.modules])"
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    check=True,
    cwd=_LAUNCH.parents[1],
  )
  assert done.stdout.strip() == '[]'


def _mentions(pattern, text):
  """Returns the one match in a launcher, its comments included."""
  (one,) = set(re.findall(pattern, text))
  return one


@pytest.mark.parametrize(
  'path', sorted(_LAUNCH.iterdir()), ids=lambda path: path.name
)
def test_what_a_launcher_starts_divides_over_its_slice(path):
  text = path.read_text()
  module, arm = _mentions(r'experiments/configs/(\w+)\.py(?::(\w+))?', text)
  config = importlib.import_module(f'experiments.configs.{module}')
  experiment = config.get_config(*filter(None, [arm]))
  accelerator = _mentions(r'\b(?:cpu|h100|v5e|v5p|v6e)_\d+', text)
  fit.check(experiment, tpu_gpu_configs.load(accelerator).mesh)
  assert experiment.data.length <= experiment.model.max_length
  # The config leaves these two to its user.
  assert '--config.data.path=' in text
  assert '--config.data.tokenizer=' in text


def _table():
  """Yields each pair of arm and slice in the docstring of `sizes`."""
  for arms, rest in re.findall(
    r'^ {4}((?:\d+[mb](?:, )?)+) +\d+ of (.*(?:\n {8,}.*)*)',
    sizes.__doc__,
    re.MULTILINE,
  ):
    for arm in arms.split(', '):
      for name in re.findall(r'\w+_\d+', rest.partition('--config')[0]):
        yield arm, name


_TABLE = tuple(_table())


def test_the_table_has_every_arm():
  assert {arm for arm, _ in _TABLE} == set(sizes.ARMS)
  assert ('110b', 'v5p_1024') in _TABLE


@pytest.mark.parametrize(('arm', 'name'), _TABLE)
def test_a_size_divides_over_the_slices_it_is_for(arm, name):
  fit.check(sizes.get_config(arm), tpu_gpu_configs.load(name).mesh)


def test_the_largest_slice_takes_more_rows_and_as_many_tokens():
  experiment = sizes.get_config('110b')
  mesh = tpu_gpu_configs.load('h100_4096').mesh
  with pytest.raises(ValueError, match=r'data\.batch=64: .* mesh\.fsdp=512'):
    fit.check(experiment, mesh)
  rows = experiment.data.batch * experiment.data.microbatches
  experiment.data.batch, experiment.data.microbatches = 512, 1
  fit.check(experiment, mesh)
  assert rows == 512


def test_a_step_has_the_tokens_that_the_docstring_says():
  tokens = [
    data.length * data.batch * data.microbatches
    for data in (sizes.get_config(arm).data for arm in sizes.ARMS)
  ]
  assert (min(tokens), max(tokens)) == (262_144, 4_194_304)


def test_slurm_parses():
  path = _LAUNCH / 'slurm.sh'
  subprocess.run(['bash', '-n', str(path)], check=True)
  assert _COMMAND in path.read_text()


def _run_with(folder, program, script, words, **environment):
  """Returns the lines of a bash command in which a program is replaced."""
  fake = folder / program
  fake.write_text(f'#!/bin/sh\n{script}\necho "$@"\n')
  fake.chmod(0o755)
  done = subprocess.run(
    ['bash', *words],
    capture_output=True,
    text=True,
    check=True,
    env=environment | {'PATH': f'{folder}:/usr/bin:/bin'},
  )
  return done.stdout.splitlines()


def test_slurm_passes_its_arguments_on(tmp_path):
  """With srun in its place, the script starts the one command."""
  words = str(_LAUNCH / 'slurm.sh'), 'h100_64', 'a.py:int8', '/b/c', '--d=e'
  said = 'echo "$XLA_PYTHON_CLIENT_MEM_FRACTION"'
  fraction, command = _run_with(tmp_path, 'srun', said, words)
  assert fraction == '0.92'
  assert command.endswith(
    f'{_COMMAND} --config=a.py:int8 --workdir=/b/c'
    ' --accelerator=h100_64 --multihost --d=e'
  )


def test_gke_jobset_parses():
  for name in ('gke_h100.yaml', 'gke_tpu.yaml'):
    text = (_LAUNCH / name).read_text()
    *_, document = yaml.safe_load_all(text)
    assert document['kind'] == 'JobSet'
    (job,) = document['spec']['replicatedJobs']
    spec = job['template']['spec']
    slice_ = tpu_gpu_configs.load(
      document['metadata']['labels']['accelerator'].replace('-', '_')
    )
    assert spec['parallelism'] == spec['completions'] == slice_.hosts
    (container,) = spec['template']['spec']['containers']
    assert _COMMAND in ' '.join(container['command'])
    assert f'--accelerator={slice_.name}' in ' '.join(container['command'])
    (count,) = container['resources']['limits'].values()
    assert count == slice_.devices_per_host
    # The workdir is in a volume that every pod mounts.
    mounts = {m['name']: m['mountPath'] for m in container['volumeMounts']}
    assert set(mounts) == {
      v['name'] for v in spec['template']['spec']['volumes']
    }
    assert f'--workdir={mounts["runs"]}/' in ' '.join(container['command'])


def test_skypilot_parses():
  for name in ('skypilot_h100.yaml', 'skypilot_tpu.yaml'):
    task = yaml.safe_load((_LAUNCH / name).read_text())
    slice_ = tpu_gpu_configs.load(task['envs']['ACCELERATOR'])
    assert _COMMAND in task['run']
    if slice_.chip.platform == 'cuda':
      assert task['num_nodes'] == slice_.hosts
      assert task['resources']['accelerators'] == (
        f'H100:{slice_.devices_per_host}'
      )


def test_skypilot_tells_jax_its_place(tmp_path):
  """The run sets the variables that JAX reads under Slurm."""
  task = yaml.safe_load((_LAUNCH / 'skypilot_h100.yaml').read_text())
  given = {
    'SKYPILOT_NODE_IPS': '10.0.0.7\n10.0.0.8',
    'SKYPILOT_NUM_NODES': '2',
    'SKYPILOT_NODE_RANK': '1',
  }
  lines = _run_with(
    tmp_path, 'python', 'env', ['-c', task['run']], **task['envs'], **given
  )
  assert {
    'SLURM_STEP_NODELIST=10.0.0.7,10.0.0.8',
    'SLURM_NTASKS=2',
    'SLURM_PROCID=1',
  } <= set(lines)
  assert lines[-1].endswith('--accelerator=h100_64 --multihost')
