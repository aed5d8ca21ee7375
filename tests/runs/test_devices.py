"""Each job has devices of its own, and gives them back however it ends."""

import importlib
import os
import pathlib
import random
import sys

import pytest

from kaiju_jax.runs import devices
from kaiju_jax.runs import pool

SUPPORTS = devices._supports
PER_JOB = '--devices_per_job'
MIG = ('MIG-7f1', 'MIG-GPU-9/1/0')
LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a0)
  MIG 3g.40gb     Device  0: (UUID: MIG-7f1)
  MIG 1g.10gb     Device  1: (UUID: MIG-GPU-9/1/0)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b1)
"""


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
  """A machine whose jax supports all, and that has no accelerator."""
  for name in (devices._CUDA, *devices._TPU, 'JAX_PLATFORMS'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(devices, '_supports', lambda kind: True)
  monkeypatch.setattr(devices, '_DEV', tmp_path / 'dev')
  monkeypatch.setenv('PATH', str(tmp_path / 'bin'))
  return tmp_path


def put_gpus(machine: pathlib.Path, listed: str) -> None:
  """Adds an `nvidia-smi -L` that prints these lines."""
  tool = machine / 'bin' / 'nvidia-smi'
  tool.parent.mkdir()
  tool.write_text(f'#!/bin/sh\n[ "$1" = -L ] && echo "{listed}"\n')
  tool.chmod(0o755)


def put_chips(machine: pathlib.Path, pattern: str, *numbers: int) -> None:
  """Adds device files, and others that are no chips."""
  for name in (*map(pattern.format, numbers), 'accel/accel0', 'vfio/vfio'):
    file = machine / 'dev' / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def plant(monkeypatch, kind: str, *names: str) -> None:
  """Replaces the probe."""
  found = devices.Accelerators(kind, names)
  monkeypatch.setattr(devices, 'probe', lambda: found)


def test_gpus_are_listed_and_a_sliced_one_by_its_slices(machine, monkeypatch):
  """An outer variable limits them, as CUDA reads it."""
  assert devices.probe() == ('', ())
  put_gpus(machine, LISTED)
  assert devices.probe() == ('GPU', (*MIG, 'GPU-b1'))
  for visible, names in (
    *[
      ('', ''),
      ('-1', ''),
      ('NoDevFiles', ''),
      ('3', '3'),
      ('2, 0,-1,1', '20'),
    ],
    ('GPU-b1,MIG-7f1', ('GPU-b1', 'MIG-7f1')),
  ):
    monkeypatch.setenv(devices._CUDA, visible)
    assert devices.probe().names == tuple(names)


@pytest.mark.parametrize(
  'pattern, numbers, variable',
  [('accel{}', (0, 1), devices._TPU[0]), ('vfio/{}', (5, 9), devices._TPU[1])],
)
def test_chips_are_counted_by_their_device_files(
  machine, monkeypatch, pattern, numbers, variable
):
  put_chips(machine, pattern, *numbers)
  assert devices.probe() == ('TPU', ('0', '1'))
  monkeypatch.setenv(variable, '2,3')
  assert devices.probe() == ('TPU', ('2', '3'))
  monkeypatch.setenv(variable, '2,2')
  with pytest.raises(ValueError, match=f'{variable}=2,2: names a device twice'):
    devices.probe()


@pytest.mark.parametrize(
  'platforms, kind',
  [
    *[('', 'TPU'), ('tpu,cpu', 'TPU'), ('cuda', 'GPU'), ('gpu', 'GPU')],
    *[('cpu', ''), ('rocm', '')],
  ],
)
def test_only_what_jax_will_use_is_found(machine, monkeypatch, platforms, kind):
  put_gpus(machine, LISTED)
  put_chips(machine, 'accel{}', 0)
  monkeypatch.setenv('JAX_PLATFORMS', platforms)
  assert devices.probe().kind == kind
  monkeypatch.setattr(devices, '_supports', lambda kind: False)
  assert devices.probe() == ('', ())


def test_what_jax_supports_is_what_is_installed(machine, monkeypatch):
  monkeypatch.setattr('sys.path', [str(machine)])
  assert not SUPPORTS('GPU') and not SUPPORTS('TPU')
  (machine / 'libtpu.py').touch()
  importlib.invalidate_caches()
  assert not SUPPORTS('GPU') and SUPPORTS('TPU')
  plugin = machine / 'jax_cuda12_plugin-1.dist-info' / 'entry_points.txt'
  plugin.parent.mkdir()
  plugin.write_text('[jax_plugins]\nxla_cuda12 = jax_plugins.xla_cuda12\n')
  (plugin.parent / 'METADATA').write_text('Name: jax_cuda12_plugin\n')
  assert SUPPORTS('GPU')


@pytest.mark.parametrize(
  'options, groups',
  [
    ({}, ['g0', 'g1', 'g2', 'g3', 'g4']),
    ({'runs': 2}, ['g0', 'g1']),
    ({'runs': 0}, ['g0']),
    ({'runs': 2, 'jobs': 5}, ['g0', 'g1', 'g2', 'g3', 'g4']),
    ({'jobs': 1}, ['g0']),
    ({'width': 2}, ['g0,g1', 'g2,g3']),
    ({'width': 2, 'per_job': 2, 'jobs': 2}, ['g0,g1', 'g2,g3']),
    ({'width': None}, ['g0', 'g1', 'g2', 'g3', 'g4']),
    ({'width': None, 'per_job': 5}, ['g0,g1,g2,g3,g4']),
    ({'per_job': 0, 'jobs': 2}, [None, None]),
  ],
)
def test_every_place_has_gpus_of_its_own(monkeypatch, options, groups):
  plant(monkeypatch, 'GPU', 'g0', 'g1', 'g2', 'g3', 'g4')
  places = devices.find_places(**{'runs': 9} | options)
  found = [place.environment for place in places]
  assert [one.get(devices._CUDA) for one in found] == groups
  hidden = {'JAX_PLATFORMS': 'cpu'}
  assert all((one == hidden) == (devices._CUDA not in one) for one in found)
  cores = [place.cores for place in places]
  assert cores == [one.cores for one in pool.share_cores([{}] * len(places))]


@pytest.mark.parametrize(
  'kind, names, options, message',
  [
    ('GPU', '012', {'jobs': 4}, '--jobs=4: must be at most 3, .*3 GPUs'),
    ('GPU', '012', {'jobs': 2, 'width': 2}, '--jobs=2: must be at most 1,'),
    ('GPU', '0', {'width': 2}, f'{PER_JOB}=2: there are 1 GPU here'),
    ('GPU', '012', {'per_job': 2}, f'{PER_JOB}=2: must be 1, .*over.$'),
    ('GPU', '012', {'per_job': 1, 'width': 2}, f'{PER_JOB}=1: .* 2, .*--f'),
    ('GPU', MIG, {'width': 2}, f'{PER_JOB}=2: must be 1, .* one MIG'),
    ('TPU', '0123', {'width': 3}, f'{PER_JOB}=3: must be 1, 2, 4 or 8'),
    ('TPU', '1234', {'width': 2}, f'{PER_JOB}=2: TPU chips 1, 2 are no'),
    ('TPU', '0213', {'width': 2}, f'{PER_JOB}=2: TPU chips 0, 2 are no'),
    ('TPU', '0123', {'per_job': 1, 'width': 4}, f'{PER_JOB}=1: must be 4, '),
    ('', '', {'per_job': 2, 'width': None}, f'{PER_JOB}=2: no GPU or TPU'),
  ],
)
def test_what_the_devices_do_not_suffice_for_is_refused(
  monkeypatch, kind, names, options, message
):
  plant(monkeypatch, kind, *names)
  with pytest.raises(ValueError, match=message):
    devices.find_places(9, **options)


def test_on_a_cpu_jobs_share_the_cores(monkeypatch):
  monkeypatch.setattr(pool, 'count_cores', lambda: 3)
  words = (9, 4), (9,), (2,), (0,), (9, None, 1), (9, None, 0)
  counts = [
    [len(devices.find_places(*one, on_cpu=on_cpu)) for one in words]
    for on_cpu in (None, 1)
  ]
  assert counts == [[4, 3, 2, 1, 3, 3], [4, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
  'width, per_job, bounds',
  [
    *[(1, None, '1,1,1'), (2, None, '1,2,1'), (4, 4, '2,2,1')],
    *[(8, None, '2,4,1'), (8, 4, '2,2,1')],
  ],
)
def test_chips_are_neighbours_behind_a_port_of_their_own(
  monkeypatch, width, per_job, bounds
):
  """A chip may be two of jax's devices: a mesh of eight fits four chips."""
  plant(monkeypatch, 'TPU', *map(str, range(8)))
  places = devices.find_places(9, None, per_job, width)
  found = [place.environment for place in places]
  chips = [one['TPU_VISIBLE_CHIPS'] for one in found]
  assert ','.join(chips) == '0,1,2,3,4,5,6,7'
  assert {x.count(',') + 1 for x in chips} == {per_job or width}
  ports = {one['TPU_PROCESS_PORT'] for one in found}
  assert len(ports) == len(found)
  for one in found:
    assert one['TPU_VISIBLE_DEVICES'] == one['TPU_VISIBLE_CHIPS']
    assert one['TPU_CHIPS_PER_PROCESS_BOUNDS'] == bounds
    assert one['TPU_PROCESS_BOUNDS'] == '1,1,1'
    assert one['TPU_PROCESS_ADDRESSES'].endswith(f':{one["TPU_PROCESS_PORT"]}')
    assert one['CLOUD_TPU_TASK_ID'] == '0'


# Locks a file per device, which the kernel unlocks at the process's end, leaves
# a child that holds the locks for some time longer, and ends in some way.
LIFE = """
import fcntl, os, sys, time
seconds, end = float(sys.argv[1]), sys.argv[2]
names = os.environ['CUDA_VISIBLE_DEVICES'].split(',')
files = [open(os.path.join(sys.argv[3], name), 'w') for name in names]
held = set()
for file in files * 3:  # Three times: an orphan takes some time to die.
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.add(file)
  except OSError:
    time.sleep(.03)
kept = os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE')
print('saw', *names, kept, len(held), flush=True)
time.sleep(seconds)
if end == 'orphan' and not os.fork():
  time.sleep(60)
if end == 'killed':
  os.kill(os.getpid(), 9)
os._exit(end == 'failed')
"""
ENDS = 'finished', 'failed', 'killed', 'orphan'


@pytest.mark.parametrize('seed, width', [(0, 1), (1, 2)])
def test_no_two_living_jobs_share_a_device(tmp_path, monkeypatch, seed, width):
  random_ = random.Random(seed)
  plant(monkeypatch, 'GPU', 'GPU-a', '1', 'GPU-c', '3', 'GPU-e')
  monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'kept')
  # Every end at least once, in an order that is drawn.
  ends = [*ENDS, *random_.choices(ENDS, k=11)]
  random_.shuffle(ends)
  commands = {}
  for number, end in enumerate(ends):
    seconds = str(random_.choice((0.1, 0.2, 0.3)))
    words = sys.executable, '-S', '-E', '-c', LIFE, seconds, end, str(tmp_path)
    log = tmp_path / 'logs' / str(number)
    commands[pool.Command(log.name, words, log)] = end
  places = devices.find_places(len(commands), width=width)
  assert len(places) == 5 // width
  ended = [one for one in pool.run(list(commands), places) if one]
  statuses = {one.name: one.status for one in ended}
  assert statuses == {
    one.name: {'failed': 1, 'killed': -9}.get(end, 0)
    for one, end in commands.items()
  }
  # Each had all of its own devices to itself, and all places were used.
  lines = {one.log.read_text().splitlines()[-1] for one in commands}
  used = [one.environment[devices._CUDA].replace(',', ' ') for one in places]
  assert lines == {f'saw {names} kept {width}' for names in used}
  assert len({*' '.join(used).split()}) == width * len(places)
  assert devices._CUDA not in os.environ
