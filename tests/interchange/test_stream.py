"""Blocks of a folder become the same bits as whole float32 masters do."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from kaiju_jax.decoding.device import weights
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import shards
from kaiju_jax.interchange import stream
from kaiju_jax.interchange import tensors as tensors_lib
from kaiju_jax.interchange.families import registry
from kaiju_jax.model import deployed
from kaiju_jax.quantization import config as quantization_config
from tests.interchange import family_folders as folders

# Tied and untied tables, biases, gates, norms of queries and keys, one head of
# keys, and a folder of our own, whose tables hold √D.
CHANGES = {
  'llama': {'num_key_value_heads': 1},
  'qwen2': {},
  'qwen3': {'tie_word_embeddings': True},
  'gemma3_text': {},
  'olmo3': {'num_key_value_heads': 1},
  'arcee': {'tie_word_embeddings': True},
}
DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Several blocks to a tensor, the last one shorter."""
  monkeypatch.setattr(shards, '_BLOCK', 210)


def make(path, name, dtype=np.float32):
  fields = folders.fields_of(name) | CHANGES[name]
  tensors = {
    key: x.astype(dtype) for key, x in folders.tensors_of(fields).items()
  }
  return folders.write(path, fields, tensors)


def assert_same(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for path, x in jax.tree_util.tree_leaves_with_path(got):
    y = dict(jax.tree_util.tree_leaves_with_path(want))[path]
    assert x.dtype == y.dtype, path
    np.testing.assert_array_equal(x, y, err_msg=str(path))


@pytest.mark.parametrize('place, name', list(enumerate(CHANGES)))
def test_codes_have_the_bits_of_those_of_masters(tmp_path, place, name):
  folder = make(tmp_path / 'in', name, DTYPES[place % 3])
  quantization = quantization_config.for_serving()
  masters, config = hugging_face.read(folder)
  config = dataclasses.replace(config, quantization=quantization)
  got, config_again = hugging_face.read(
    folder, (), stream.DECODING, quantization
  )
  assert config_again == config
  want = weights.ready(masters, config)
  assert_same(weights.ready(got, config), want)
  turned, _ = hugging_face.read(folder, (), stream.TURNED, quantization)
  want = weights.ready(masters, config, turned=True)
  assert_same(weights.ready(turned, config, turned=True), want)
  assert_same(weights.ready(got, config, turned=True), want)
  assert sum(x.dtype == np.int8 for x in jax.tree.leaves(got)) > 10


def test_codes_are_stacked_for_an_export(tmp_path):
  folder = make(tmp_path / 'in', 'qwen3')
  quantization = quantization_config.for_serving()
  masters, config = hugging_face.read(folder)
  config = dataclasses.replace(config, quantization=quantization)
  got, _ = hugging_face.read(folder, (), stream.DEPLOYED, quantization)
  assert_same(got, deployed.quantize(masters, config))


@pytest.mark.parametrize('dtype', DTYPES[:2])
def test_floats_are_those_of_masters_in_the_models_dtype(tmp_path, dtype):
  folder = make(tmp_path / 'in', 'llama', dtype)
  masters, config = hugging_face.read(folder)
  got, _ = hugging_face.read(folder, (), stream.DECODING)
  assert config.dtype == np.dtype(dtype).name
  assert_same(got, weights.ready(masters, config))


def with_header(path, change):
  """Changes the header of a folder's file, and keeps the data."""
  file = path / 'model.safetensors'
  data = file.read_bytes()
  length = int.from_bytes(data[:8], 'little')
  text = data[8 : 8 + length].decode()
  header = json.loads(text)
  text = change(header) or json.dumps(header)
  file.write_bytes(
    len(text).to_bytes(8, 'little') + text.encode() + data[8 + length :]
  )


NORM = 'model.norm.weight'


def change_of(name, **fields):
  return lambda header: header[name].update(fields)


@pytest.mark.parametrize(
  'change, message',
  [
    (change_of(NORM, shape=[31]), f'{NORM}: data_offsets hold 120 bytes, F32'),
    (change_of(NORM, shape=[30, -1]), f'{NORM}: shape=.30, -1., must be count'),
    (change_of(NORM, shape=[30.0]), f'{NORM}: shape=.30.0., must be counts'),
    (change_of(NORM, shape='30'), f"{NORM}: shape='30', must be counts"),
    (change_of(NORM, dtype=3), f'{NORM}: dtype=3, must be a string'),
    (change_of(NORM, dtype='F64'), f'{NORM}: holds F64, must be one of F32'),
    (change_of(NORM, data_offsets=[8, 0]), f'{NORM}: data_offsets=.8, 0., mus'),
    (
      change_of(NORM, data_offsets=[0, 120]),
      r'data_offsets begin at \d+, must',
    ),
    (change_of(NORM, data_offsets=[True, 120]), 'data_offsets=.True, 120.'),
    (lambda header: header.update(x=[]), 'x: dtype=None, must be a string'),
    (
      lambda header: header.pop(NORM) and None,
      'data_offsets begin at|has .* by',
    ),
    (lambda header: '[]', 'its header is not an object'),
    (lambda header: '{', 'its header is not valid JSON'),
    (lambda header: '[' * 100_000, 'nested deeper than 64 levels'),
    (lambda header: '{"a": 1, "a": 2}', "the key 'a' is there twice"),
  ],
)
def test_a_header_that_lies_is_refused(tmp_path, change, message):
  folder = make(tmp_path / 'in', 'llama')
  with_header(folder, change)
  with pytest.raises(
    ValueError, match=rf'in: (model\.safetensors: )?.*{message}'
  ):
    hugging_face.read(folder)


def test_no_data_is_read_before_all_headers_are_right(tmp_path, monkeypatch):
  fields = folders.fields_of('qwen3')
  tensors = folders.tensors_of(fields)
  path = folders.write(tmp_path / 'in', fields, {})
  names = sorted(tensors)
  held = {'a.safetensors': names[::2], 'b.safetensors': names[1::2]}
  for file, some in held.items():
    safetensors.numpy.save_file(
      {name: tensors[name] for name in some}, path / file
    )
  (path / 'model.safetensors').unlink()
  where = {name: file for file, some in held.items() for name in some}
  index = path / 'model.safetensors.index.json'

  def refuse(*_):
    raise AssertionError('data was read')

  with monkeypatch.context() as patch:
    patch.setattr(shards, 'blocks', refuse)
    for message, wrong in (
      (r"a\.safetensors: has no tensor 'no'", {'no': 'a.safetensors'}),
      (
        r'no\.safetensors: not found, named by .* for 2 tensors',
        {'x': 'no.safetensors', 'y': 'no.safetensors'},
      ),
      (r"weight_map\['x'\]='/etc/x'", {'x': '/etc/x'}),
      (r"weight_map\['x'\]='\.\.'", {'x': '..'}),
      (r"weight_map\['x'\]='a\\\\b'", {'x': 'a\\b'}),
    ):
      index.write_text(json.dumps({'weight_map': where | wrong}))
      with pytest.raises((ValueError, FileNotFoundError), match=message):
        hugging_face.read(path)
    index.write_text(json.dumps({'weight_map': where}))
    whole = (path / 'b.safetensors').read_bytes()
    for data, message in (
      (whole[:-1], r'b\.safetensors: .* bytes, its header asks for'),
      (whole + b'x', r'b\.safetensors: .* bytes, its header asks for'),
      (whole[:40], r'b\.safetensors: .* a header of [\d,]+ bytes in 40'),
      (b'', r'b\.safetensors: .* a header of 0 bytes in 0'),
    ):
      (path / 'b.safetensors').write_bytes(data)
      with pytest.raises(ValueError, match=message):
        hugging_face.read(path)
  (path / 'b.safetensors').write_bytes(whole)
  hugging_face.read(path)


def test_weights_that_could_run_code_are_not_read(tmp_path):
  path = folders.write(tmp_path / 'in', folders.fields_of('llama'), {})
  (path / 'model.safetensors').rename(path / 'pytorch_model.bin')
  with pytest.raises(FileNotFoundError, match=r'pytorch_model\.bin: not read'):
    hugging_face.read(path)


def test_links_stay_in_the_folder_or_its_cache(tmp_path):
  hub = tmp_path / 'models--a--b'
  (hub / 'snapshots').mkdir(parents=True)
  (hub / 'blobs').mkdir()
  folder = make(hub / 'snapshots/1234', 'llama')
  for name in 'config.json', 'model.safetensors':
    (folder / name).rename(hub / 'blobs' / name)
    (folder / name).symlink_to(f'../../blobs/{name}')
  hugging_face.read(folder)
  # A link to the folder itself is the caller's own.
  (tmp_path / 'link').symlink_to(folder)
  hugging_face.read(tmp_path / 'link')
  for target in ('../../refs/x.json', '../../blobs/../x', '/etc/hostname'):
    (folder / 'tokenizer.json').symlink_to(target)
    with pytest.raises(
      ValueError, match=rf"tokenizer\.json: links to '{target}"
    ):
      hugging_face.read(folder)
    (folder / 'tokenizer.json').unlink()
  # Without the cache's own name, the place of blobs is anybody's.
  other = tmp_path / 'x/y/z'
  other.parent.mkdir(parents=True)
  folder.rename(other)
  (hub / 'blobs').rename(tmp_path / 'x/blobs')
  with pytest.raises(ValueError, match=r'config\.json: links to'):
    hugging_face.read(other)


# Loads a small folder, so that libraries and programs are there, then a large
# one, and prints its bytes and those that were resident at once, at most.
MEASURE = """
import sys
import jax
from kaiju_jax.decoding.device import weights
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import stream
from kaiju_jax.quantization import config as quantization_config

def status(name):
  for line in open('/proc/self/status'):
    if line.startswith(name):
      return 1024 * int(line.split()[1])

def load(path):
  params, config = hugging_face.read(
    path, (), stream.form_for_decoding(), quantization_config.for_serving()
  )
  params = weights.ready(params, config, turned=True)
  return jax.device_put(params, jax.devices()[0])

load(sys.argv[1])
with open('/proc/self/clear_refs', 'w') as file:
  file.write('5')  # VmHWM starts anew.
before = status('VmRSS:')
params = load(sys.argv[2])
size = sum(x.nbytes for x in jax.tree.leaves(params))
print(size, status('VmHWM:') - before)
"""


def write_wide(path, depth, vocab_size):
  """Writes a folder in bfloat16 whose numbers repeat, quickly."""
  fields = folders.fields_of('qwen3') | {
    'tie_word_embeddings': True,
    'vocab_size': vocab_size,
    'hidden_size': 1024,
    'intermediate_size': 3072,
    'num_hidden_layers': depth,
    'num_attention_heads': 16,
    'num_key_value_heads': 8,
    'head_dim': 128,
    'layer_types': [folders.FULL] * depth,
  }
  reading = registry.read(fields)
  pattern = np.random.default_rng(0).standard_normal(2**16 + 1)
  pattern = pattern.astype(ml_dtypes.bfloat16)
  return folders.write(
    path,
    fields,
    {
      name: np.resize(pattern, shape)
      for name, shape in tensors_lib.shapes(reading).items()
    },
  )


@pytest.mark.slow
@pytest.mark.flaky(reruns=1)
@pytest.mark.skipif(
  not pathlib.Path('/proc/self/clear_refs').exists(), reason='needs Linux'
)
def test_memory_holds_little_beside_the_result(tmp_path):
  small = write_wide(tmp_path / 'small', 1, 2048)
  large = write_wide(tmp_path / 'large', 4, 65_536)
  assert (large / 'model.safetensors').stat().st_size > 150e6
  found = subprocess.run(
    [sys.executable, '-c', MEASURE, small, large],
    check=True,
    capture_output=True,
    text=True,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
  )
  size, most = map(int, found.stdout.split())
  assert 1.2e8 < size < 1.5e8
  assert most <= 1.2 * size
