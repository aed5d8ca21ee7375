"""A GGUF file gives the parameters, tokens and settings that a folder does."""

import dataclasses
import json
import math
import re

import gguf
import jax
import numpy as np
import pytest

from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import quantized
from kaiju_jax.interchange import shards
from kaiju_jax.interchange import stream
from kaiju_jax.interchange.gguf import folder as gguf_folder
from kaiju_jax.interchange.gguf import header as header_lib
from kaiju_jax.interchange.gguf import metadata
from kaiju_jax.model import rope_scaling
from kaiju_jax.quantization import config as quantization_config
from tests.interchange import family_folders as folders
from tests.interchange import gguf_files as files

pytestmark = pytest.mark.usefixtures('user_cache')
FULL, SLIDING = folders.FULL, folders.SLIDING
# What the converter writes of a family's angles, beside the folder's fields.
_BASE = {'rope_theta': 300.0}
CHANGES = {
  'llama': {'rope_parameters': {'rope_type': 'default', **_BASE}},
  'arcee': {
    'rope_parameters': {
      'rope_type': 'yarn',
      **_BASE,
      'factor': 4.0,
      'beta_fast': 2.0,
      'beta_slow': 0.25,
      'original_max_position_embeddings': 24,
    }
  },
  'qwen2': {
    'sliding_window': None,
    'use_sliding_window': False,
    'layer_types': [FULL, FULL],
    'rope_parameters': {'rope_type': 'linear', **_BASE, 'factor': 4.0},
  },
  'qwen3': {
    'sliding_window': None,
    'use_sliding_window': False,
    'layer_types': [FULL, FULL],
    'rope_parameters': {'rope_type': 'default', **_BASE},
  },
  'smollm3': {
    'num_hidden_layers': 4,
    'no_rope_layers': [1, 1, 1, 0],
    'layer_types': [FULL] * 4,
    'rope_parameters': {'rope_type': 'default', **_BASE},
  },
  'gemma3_text': {
    'query_pre_attn_scalar': 8,
    'rope_parameters': {
      FULL: {'rope_type': 'linear', **_BASE, 'factor': 8.0},
      SLIDING: {'rope_type': 'default', 'rope_theta': 30.0},
    },
  },
  'olmo2': {'rope_parameters': {'rope_type': 'default', **_BASE}},
  'olmo3': {
    'rope_parameters': {
      FULL: {'rope_type': 'default', **_BASE},
      SLIDING: {'rope_type': 'default', **_BASE},
    }
  },
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Several blocks to a tensor, the last one shorter."""
  monkeypatch.setattr(shards, '_BLOCK', 210)


def fields_of(name: str) -> dict:
  fields = folders.fields_of(name) | CHANGES[name]
  if name == 'gemma3_text':
    del fields['_sliding_window_pattern']
  return fields


def angles_of(fields: dict) -> dict:
  """Returns the metadata of a folder's angles."""
  name = files.ARCHITECTURES[fields['model_type']]
  found = fields['rope_parameters']
  own = {}
  if SLIDING in found:
    if name == 'gemma3':
      own['rope.freq_base_swa'] = found[SLIDING]['rope_theta']
    found = found[FULL]
  own['rope.freq_base'] = found['rope_theta']
  if found['rope_type'] != 'default':
    own['rope.scaling.type'] = found['rope_type']
    for theirs, ours in {
      'factor': 'factor',
      'beta_fast': 'yarn_beta_fast',
      'beta_slow': 'yarn_beta_slow',
      'original_max_position_embeddings': 'original_context_length',
    }.items():
      if theirs in found:
        own[f'rope.scaling.{ours}'] = found[theirs]
  if found['rope_type'] == 'yarn':  # The usual factor, as some write it.
    own['rope.scaling.attn_factor'] = 0.1 * math.log(found['factor']) + 1
  return {f'{name}.{key}': value for key, value in own.items()}


def make(tmp_path, name: str, changes=None, tensors=None):
  """Writes a family's model as a folder and as a GGUF file; returns both."""
  tmp_path.mkdir(exist_ok=True)
  fields = fields_of(name)
  own = folders.tensors_of(fields)
  folder = folders.write(tmp_path / 'folder', fields, own)
  stored = files.tensors_of(fields, own) | (tensors or {})
  said = files.metadata_of(fields) | angles_of(fields) | (changes or {})
  file = files.write(
    tmp_path / 'model.gguf',
    files.ARCHITECTURES[name],
    {key: x for key, x in said.items() if x is not None},
    {key: x for key, x in stored.items() if x is not None},
  )
  return folder, file


def assert_same(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('name', CHANGES)
def test_a_file_has_the_model_of_its_folder(tmp_path, name):
  folder, file = make(tmp_path, name)
  for form, arm in (
    (stream.MASTERS, None),
    (stream.TURNED, quantization_config.for_serving()),
  ):
    want, config = hugging_face.read(folder, (), form, arm)
    got, found = hugging_face.read(file, (), form, arm)
    assert (
      dataclasses.replace(found, norm_epsilon=config.norm_epsilon) == config
    )
    np.testing.assert_allclose(found.norm_epsilon, config.norm_epsilon)
    assert_same(got, want)


def test_a_file_without_a_base_of_angles_has_llama_cpps(tmp_path):
  _, file = make(tmp_path, 'llama', {'llama.rope.freq_base': None})
  assert hugging_face.read_config(file).rope_global == 10_000


def test_llama_3s_angles_are_found_in_their_divisors(tmp_path):
  scaled = rope_scaling.RopeScalingConfig(
    kind='llama3',
    factor=32.0,
    original_length=8192,
    low=1.0,
    high=4.0,
    angles='float32',
  )
  _, file = make(
    tmp_path,
    'llama',
    {'llama.rope.freq_base': 500_000.0},
    {metadata.ROPE_DIVISORS: divisors(500_000.0, 32.0)},
  )
  assert hugging_face.read_config(file).rope_scaling == scaled


def divisors(base: float, factor: float, size: int = 4) -> np.ndarray:
  """Returns what Llama 3 divides its angles by, one pair after another."""
  found = []
  for index in range(size):
    wave = 2 * np.pi * base ** (index / size)
    if wave < 8192 / 4:
      found.append(1.0)
    elif wave > 8192:
      found.append(factor)
    else:
      share = (8192 / wave - 1) / 3
      found.append(1 / ((1 - share) / factor + share))
  return np.array(found, np.float32)


def blocks_of(dtype: str, shape: tuple[int, int], seed: int) -> np.ndarray:
  """Returns random blocks of a type, whose scales are small numbers."""
  numbers, size = quantized.SIZES[dtype]
  rng = np.random.default_rng(seed)
  raw = rng.integers(
    0, 256, (shape[0], shape[1] // numbers, size), dtype=np.uint8
  )
  scale = rng.uniform(0.001, 0.01, raw.shape[:2]).astype(np.float16)
  halves = scale.view(np.uint8).reshape(*raw.shape[:2], 2)
  # The scale is a half at the beginning; Q6_K has it at the end.
  place = slice(size - 2, size) if dtype == 'Q6_K' else slice(0, 2)
  raw[..., place] = halves
  if dtype in ('Q4_1', 'Q5_1', 'Q4_K', 'Q5_K'):  # And one of the least number.
    raw[..., 2:4] = halves
  return raw.reshape(shape[0], -1)


@pytest.mark.parametrize('dtype', quantized.SIZES)
def test_quantized_weights_have_the_packages_floats(tmp_path, dtype):
  numbers = quantized.SIZES[dtype][0]
  fields = fields_of('llama') | {
    'hidden_size': numbers,
    'intermediate_size': 2 * numbers,
    'num_attention_heads': 4,
    'head_dim': numbers // 4,
  }
  kind = gguf.GGMLQuantizationType[dtype]
  floats, stored = {}, {}
  for place, (name, x) in enumerate(folders.tensors_of(fields).items()):
    ours = files.rename(name, 'llama')
    if x.ndim == 1:
      floats[name] = stored[ours] = x
      continue
    raw = blocks_of(dtype, x.shape, place)
    stored[ours] = raw, kind
    x = gguf.quants.dequantize(raw, kind)
    if name.endswith(('q_proj.weight', 'k_proj.weight')):
      pairs = x.reshape(-1, numbers // 8, 2, x.shape[1])
      x = pairs.swapaxes(1, 2).reshape(x.shape)
    floats[name] = np.ascontiguousarray(x)
  folder = folders.write(tmp_path / 'folder', fields, floats)
  file = files.write(
    tmp_path / 'model.gguf',
    'llama',
    files.metadata_of(fields) | angles_of(fields),
    stored,
  )
  for form, arm in (
    (stream.MASTERS, None),
    (stream.DEPLOYED, quantization_config.for_serving()),
  ):
    want, _ = hugging_face.read(folder, (), form, arm)
    got, config = hugging_face.read(file, (), form, arm)
    assert_same(got, want)
  assert config.dtype == 'float32'


def test_plain_types_are_read(tmp_path):
  fields = fields_of('qwen3')
  tensors = folders.tensors_of(fields)
  stored = files.tensors_of(fields, tensors)
  half = {key: x.astype(np.float16) for key, x in stored.items() if x.ndim > 1}
  _, file = make(tmp_path, 'qwen3', tensors=half)
  got, _ = hugging_face.read(file)
  rounded = {
    key: x.astype(np.float16).astype(np.float32) if x.ndim > 1 else x
    for key, x in tensors.items()
  }
  want, _ = hugging_face.read(folders.write(tmp_path / 'b', fields, rounded))
  assert_same(got, want)


Q2_K = gguf.GGMLQuantizationType.Q2_K


@pytest.mark.parametrize(
  'changes, tensors, message',
  [
    ({'split.count': 3}, {}, 'split.count=3: must be 1'),
    ({'split.count': '3'}, {}, 'split.count=3: must be 1'),
    ({'general.sampling.penalty_last_n': '64'}, {}, "last_n='64': must be int"),
    ({'general.alignment': 24}, {}, 'general.alignment=24: must be a power'),
    ({'llama.block_count': 3}, {}, r'layers\.2.*: missing'),
    ({'llama.block_count': 0}, {}, 'llama.block_count=0: must be a positive'),
    ({'llama.block_count': '2'}, {}, "llama.block_count='2': must be a posit"),
    ({'llama.vocab_size': 91}, {}, 'llama.vocab_size=91: must be 90'),
    ({'llama.rope.dimension_count': 4}, {}, 'dimension_count=4: must be 8'),
    ({'llama.attention.value_length': 4}, {}, 'value_length=4: must be 8'),
    ({'llama.expert_count': 8}, {}, 'llama.expert_count'),
    ({'llama.attention.sliding_window': 8}, {}, 'sliding_window'),
    ({'llama.feed_forward_length': 41}, {}, r'down_proj.*: has shape .30, 40.'),
    ({'llama.attention.head_count': 4}, {}, r'_proj.*: has shape'),
    ({'llama.rope.scaling.type': 'longrope'}, {}, 'longrope'),
    (
      {
        'llama.rope.scaling.type': 'yarn',
        'llama.rope.scaling.factor': 4.0,
        'llama.rope.scaling.attn_factor': 0.5,
      },
      {},
      'attn_factor=0.5: must be 1',
    ),
    *(
      (
        {'llama.rope.scaling.type': 'yarn', 'llama.rope.scaling.factor': wrong},
        {},
        f'llama.rope.scaling.factor={wrong}: must be at least 1',
      )
      for wrong in (-1.0, 0.0, 0.5, math.nan)
    ),
    ({}, {'token_embd.weight': None}, 'token_embd.weight: missing'),
    ({}, {'blk.1.ffn_up.weight': None}, r'layers\.1\.mlp\.up_proj.*: missing'),
    ({}, {'blk.1.odd.weight': np.ones(3, np.float32)}, 'blk.1.odd.weight: no'),
    (
      {},
      {'blk.0.attn_norm.weight': np.full(30, np.nan, np.float32)},
      'input_layernorm.*nan',
    ),
    (
      {},
      {'blk.0.attn_norm.weight': (np.zeros((1, 84), np.uint8), Q2_K)},
      'input_layernorm.weight: holds ggml type 10, must be one of F32',
    ),
    (
      {},
      {metadata.ROPE_DIVISORS: np.array([1, 1, 2, 4], np.float32)},
      'rope_freqs.weight: must be those of Llama 3',
    ),
    (
      {},
      {metadata.ROPE_DIVISORS: np.ones((2, 2), np.float32)},
      'rope_freqs.weight: must be a vector',
    ),
  ],
)
def test_a_file_that_does_not_fit_is_refused(
  tmp_path, changes, tensors, message
):
  _, file = make(tmp_path, 'llama', changes, tensors)
  with pytest.raises(ValueError, match=rf'model\.gguf: .*{message}'):
    hugging_face.read(file)


def test_another_architecture_is_refused_by_name(tmp_path):
  file = files.write(
    tmp_path / 'a.gguf', 'mamba', {}, {'x': np.ones(3, np.float32)}
  )
  with pytest.raises(ValueError, match=r"architecture='mamba': cannot"):
    hugging_face.read(file)


def extent_of(file) -> tuple[int, int]:
  """Returns the first byte of a file's data, and the end of its last tensor."""
  tensors = gguf_folder.unpack(file).tensors.values()
  last = max(tensors, key=lambda one: one.offset)
  end = last.offset + last.matrix[0] * shards.row_bytes(last)
  return min(one.offset for one in tensors), end


def test_a_file_that_is_cut_off_is_refused(tmp_path):
  _, file = make(tmp_path, 'llama')
  whole = file.read_bytes()
  header, end = extent_of(file)
  places = [*range(0, header, max(1, header // 60)), header, end - 1]
  for place in places:
    file.write_bytes(whole[:place])
    with pytest.raises(ValueError, match=r'model\.gguf: '):
      gguf_folder.unpack(file)
  file.write_bytes(whole[:end])  # Nothing fills up the last tensor.
  assert gguf_folder.unpack(file).tensors


@pytest.mark.parametrize(
  'name, model', [('arcee', 'gpt2'), ('gemma3_text', 'llama')]
)
def test_metadata_of_another_type_are_one_line(
  tmp_path, monkeypatch, name, model
):
  _, file = make(tmp_path, name)
  header = header_lib.read(file)
  known = header.fields | {
    'general.sampling.penalty_last_n': 64,
    'tokenizer.ggml.model': model,
    'tokenizer.ggml.pre': 'llama-bpe',
    'tokenizer.ggml.add_space_prefix': True,
    'tokenizer.ggml.tokens': files.TOKENS,
    'tokenizer.ggml.scores': [0.0] * len(files.TOKENS),
    'tokenizer.ggml.merges': [],
    'tokenizer.ggml.bos_token_id': 0,
  }
  for key in known:
    for wrong in 'x', [1], ['a'], -1, 0.5, True, math.nan:
      changed = header._replace(fields=known | {key: wrong})
      monkeypatch.setattr(header_lib, 'read', lambda _, made=changed: made)
      try:
        gguf_folder._unpack.__wrapped__(file, 0, 0)
      except ValueError as error:
        assert re.match(rf'{re.escape(str(file))}: .+', str(error))


def test_numbers_of_all_types_are_read(tmp_path):
  writer = gguf.GGUFWriter(tmp_path / 'a.gguf', 'llama')
  ends = {'bool': (False, True)}
  for bits in 8, 16, 32, 64:
    ends[f'uint{bits}'] = 1, 2**bits - 1
    ends[f'int{bits}'] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
  ends |= {'float32': (-0.5, 2.0**100), 'float64': (0.1, -1e300)}
  for kind, values in ends.items():
    for place, value in enumerate(values):
      getattr(writer, f'add_{kind}')(f'{kind}.{place}', value)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  fields = header_lib.read(tmp_path / 'a.gguf').fields
  for kind, values in ends.items():
    got = [fields[f'{kind}.{place}'] for place in (0, 1)]
    assert got == [*values]
    assert [*map(type, got)] == [*map(type, values)]


def test_changed_bytes_of_a_header_raise_nothing_else(tmp_path):
  _, file = make(tmp_path, 'llama')
  whole = file.read_bytes()
  header, _ = extent_of(file)
  rng = np.random.default_rng(0)
  refused = 0
  for _ in range(200):
    data = bytearray(whole)
    for place in rng.integers(0, header, rng.integers(1, 4)):
      data[place] = rng.integers(256)
    file.write_bytes(data)
    try:
      hugging_face.read_config(file)
    except ValueError:
      refused += 1
  assert 40 <= refused < 200


@pytest.mark.parametrize(
  'place, value, message',
  [
    (0, b'GGML', "must begin with b'GGUF'"),
    (4, (1).to_bytes(4, 'little'), 'version=1'),
    (4, (3).to_bytes(4, 'big'), 'version='),
    (8, (2**40).to_bytes(8, 'little'), 'tensor_count='),
    (16, (2**40).to_bytes(8, 'little'), 'kv_count='),
    (24, (2**62).to_bytes(8, 'little'), 'bytes wanted at byte'),
  ],
)
def test_a_header_that_lies_is_refused(tmp_path, place, value, message):
  _, file = make(tmp_path, 'llama')
  data = bytearray(file.read_bytes())
  data[place : place + len(value)] = value
  file.write_bytes(data)
  with pytest.raises(ValueError, match=message):
    gguf_folder.unpack(file)


def test_tensors_lie_one_behind_another(tmp_path):
  _, file = make(tmp_path, 'llama')
  tensors = gguf_folder.unpack(file).tensors.values()
  last = max(tensors, key=lambda one: one.offset)
  data = file.read_bytes()
  name = last.name.encode()
  # Behind the name: two sizes or one, the type, and the offset.
  place = data.index(name) + len(name) + 4 + 8 * len(last.shape) + 4
  offset = last.offset - min(one.offset for one in tensors)
  # At the beginning, and over what aligns the one before.
  for wrong in 0, offset - 32:
    file.write_bytes(
      data[:place] + wrong.to_bytes(8, 'little') + data[place + 8 :]
    )
    with pytest.raises(ValueError, match='data, must at a multiple of 32'):
      gguf_folder.unpack(file)


def test_small_files_are_made_once_and_again_when_the_file_changes(tmp_path):
  _, file = make(tmp_path, 'llama')
  first = gguf_folder.unpack(file)
  assert gguf_folder.unpack(file) is first
  assert gguf_folder.small_files(file) == first.folder
  config = json.loads((first.folder / 'config.json').read_text())
  assert config['num_hidden_layers'] == 2
  file.unlink()
  make(tmp_path / 'other', 'smollm3')
  (tmp_path / 'other' / 'model.gguf').rename(file)
  config = json.loads(
    (gguf_folder.small_files(file) / 'config.json').read_text()
  )
  assert config['num_hidden_layers'] == 4
  assert gguf_folder.small_files(tmp_path) == tmp_path


@pytest.mark.parametrize(
  'fields, license',
  [({}, ''), ({'general.license': 'apache-2.0'}, 'apache-2.0')],
)
def test_its_license_is_the_one_that_it_names(tmp_path, fields, license):
  folder, file = make(tmp_path, 'llama', fields)
  assert gguf_folder.license_of(file) == license
  assert gguf_folder.license_of(folder) == ''


def test_small_files_have_one_place_in_the_cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  _, file = make(tmp_path, 'llama')
  first = gguf_folder.unpack(file).folder
  assert first.is_relative_to(tmp_path / 'cache')
  assert first.name == file.name
  file.touch()  # As another process would find it.
  assert gguf_folder.unpack(file).folder == first
  names = {one.name for one in first.iterdir()}
  assert names == {'config.json', 'generation_config.json'}
  monkeypatch.setenv('XDG_CACHE_HOME', '/proc/none')
  file.touch()
  assert not gguf_folder.unpack(file).folder.is_relative_to(tmp_path)
