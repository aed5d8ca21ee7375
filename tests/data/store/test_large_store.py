"""A store of ten billion tokens: its start, its rows per second, its memory."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from kaiju_jax.data import documents as documents_lib
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import shards as shards_lib

ROOT = pathlib.Path(__file__).parents[3]
SIZE = 10_000_000  # Tokens of a shard, and 1,000 in a document.
SCRIPT = """
import json, sys, time

begin = time.monotonic()
from kaiju_jax.data import config as data_config
from kaiju_jax.data import loader
from kaiju_jax.data import same_text
from kaiju_jax.data import text
from kaiju_jax.data.store import corpora
from kaiju_jax.data.store import encoders

def mib():
  # getrusage would count the process that this one was forked from.
  with open('/proc/self/status') as file:
    (line,) = (line for line in file if line.startswith('VmHWM:'))
  return int(line.split()[1]) // 1024

found = {'imports': time.monotonic() - begin, 'imports_mib': mib()}
config = data_config.DataConfig(path=sys.argv[1], held_out=0.0)
begin = time.monotonic()
corpora.check(config, encoders.text_of(config))
training, _ = corpora.load(config)
described = {'': same_text.describe(training)}
rows = text.Rows(training, 512)
batches = loader.batches(rows, 8, text=described)
found['start'] = time.monotonic() - begin
begin = time.monotonic()
next(batches)
found['first_batch'] = time.monotonic() - begin
begin = time.process_time()
for index in range(4000):
  rows[index]
found['rows'] = 4000 * 512 / (time.process_time() - begin)
begin = time.process_time()
for _ in range(500):
  next(batches)
found['batches'] = 500 * 8 * 512 / (time.process_time() - begin)
batches.close()
begin = time.monotonic()
rows[len(rows)]
found['next_epoch'] = time.monotonic() - begin
found['mib'] = mib()
print(json.dumps(found))
"""


def _write(folder, count):
  """Writes `count` shards whose tokens are a hole: they take no disk."""
  folder.mkdir()
  names = [f'{n:06}' for n in range(SIZE // 1000)]
  tensors = {
    'begins': np.arange(0, SIZE + 1, 1000),
    'names': np.frombuffer(''.join(names).encode(), np.uint8),
    'name_ends': np.arange(6, 6 * len(names) + 1, 6),
    'tokens': np.zeros(0, np.uint16),
  }
  header, place = {'__metadata__': {'format': shards_lib.FORMAT}}, 0
  for name, x in tensors.items():
    size = 2 * SIZE if name == 'tokens' else x.nbytes
    dtype = {'int64': 'I64', 'uint8': 'U8', 'uint16': 'U16'}[str(x.dtype)]
    offsets = [place, place := place + size]
    header[f'training/{name}'] = {'dtype': dtype, 'data_offsets': offsets}
  data = json.dumps(header).encode()
  data = len(data).to_bytes(8, 'little') + data
  for number in range(count):
    with open(corpora.shard_path(folder, number), 'wb') as file:
      file.write(data + b''.join(x.tobytes() for x in tensors.values()))
      file.truncate(len(data) + place)
  counts = {'documents': count * 10_000, 'tokens': count * SIZE, 'digest': 'x'}
  settings = corpora.Settings(
    'text', tokenizer_lib.digest(tokenizer_lib.Bytes()), 0.0, 'text', 2**24
  )
  record = {'digest': 'x', 'described': {'training': counts}}
  manifest = {
    'settings': vars(settings),
    'sizes': [len(data) + place] * count,
    'records': {'training': record},
  }
  (folder / documents_lib.STORE).write_text(json.dumps(manifest))


@pytest.mark.slow
@pytest.mark.skipif(
  not pathlib.Path('/proc/self/status').exists(), reason='needs Linux'
)
@pytest.mark.parametrize('shards', [10, 1000])
def test_a_store_of_ten_billion_tokens(tmp_path, shards):
  """Prints its figures (`pytest -s`), which docs/data.md has."""
  _write(tmp_path / 'store', shards)
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT, str(tmp_path / 'store')],
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    check=True,
  )
  found = json.loads(done.stdout)
  print(f'{shards * SIZE:,} tokens: {found}')
  assert found['mib'] < 1024
  assert found['rows'] > 200_000
  assert found['batches'] > 200_000
  assert found['start'] < 20
