"""Our own format: what is read is what was written, and nothing else."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from kaiju_jax.interchange import own
from kaiju_jax.model import deployed
from kaiju_jax.quantization import config as quantization_config
from tests.interchange import toys

# Its block of three layers repeats.
CONFIG = toys.changed(toys.KAIJU, global_share=1)


@pytest.mark.parametrize(
  'quantization',
  [
    {'bungee': True},
    {'embedding': 'int8', 'kv_scale': 'channel', 'clamp_hidden': 'none'},
    {'matmul': 'none', 'kv': 'none', 'qk': 'none', 'bungee': True},
  ],
  ids=['int8', 'all int8, channel scales', 'float'],
)
def test_what_is_loaded_is_what_was_saved(quantization, tmp_path):
  config = dataclasses.replace(
    CONFIG,
    quantization=quantization_config.QuantizationConfig(**quantization),
  )
  params = toys.params_of(config)
  own.save(tmp_path / 'model.safetensors', params, config)
  loaded, loaded_config = own.load(tmp_path / 'model.safetensors')
  assert loaded_config == config
  saved = deployed.quantize(params, config)
  assert jax.tree.structure(loaded) == jax.tree.structure(saved)
  for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(saved)):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def test_masters_and_several_heads_come_back_and_older_files_are_read(tmp_path):
  config = dataclasses.replace(
    CONFIG, num_kv_heads=4, layout='L0:3+2s L0:3+2s G2s L3', sinks=1
  )
  params = toys.params_of(config)
  own.save(tmp_path / 'masters', params, config, masters=True)
  loaded, loaded_config = own.load(tmp_path / 'masters')
  assert loaded_config == config
  assert not deployed.is_deployed(loaded)
  jax.tree.map(np.testing.assert_array_equal, loaded, params)
  # A file of one head says nothing of heads where it is from before the field.
  path = tmp_path / 'older'
  own.save(path, toys.params_of(CONFIG), CONFIG)
  with safetensors.safe_open(path, framework='numpy') as file:
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata = file.metadata()
  fields = json.loads(metadata['config'])
  for name in 'num_kv_heads', 'feedforward', 'norms', 'rope_scaling':
    del fields[name]
  metadata['config'] = json.dumps(fields)
  safetensors.numpy.save_file(tensors, path, metadata)
  assert own.load(path)[1] == CONFIG


def test_a_file_that_is_missing_or_no_export_is_refused(tmp_path):
  (tmp_path / 'bad').write_bytes(b'not safetensors at all')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    own.load(tmp_path / 'bad')
  with pytest.raises(OSError):
    own.load(tmp_path / 'missing')


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """The tensors and the metadata of an own."""
  path = tmp_path_factory.mktemp('export') / 'model.safetensors'
  own.save(path, toys.params_of(CONFIG), CONFIG)
  with safetensors.safe_open(path, framework='numpy') as file:
    names = list(file.keys())
    return {name: file.get_tensor(name) for name in names}, file.metadata()


def _with(config, name, value):
  return json.dumps(json.loads(config) | {name: value})


@pytest.mark.parametrize(
  'config, message',
  [
    (lambda c: None, 'config: missing'),
    (lambda c: '{}', 'the config asks for'),
    (lambda c: '{"vocab_size": 4', 'delimiter'),
    (lambda c: '[]', r'ModelConfig=\[\]: must be an object'),
    (lambda c: _with(c, 'heads', 3), 'heads: no such field'),
    (lambda c: _with(c, 'd_ff', '48'), "d_ff='48': must be int"),
    (lambda c: _with(c, 'window', 0), r'model\.window=0: must be'),
    (
      lambda c: _with(c, 'd_ff', 64),
      r'w_in_DF\.codes: holds int8 \[2, 48, 40\], the config asks for int8 \[2,'
      r' 48, 64\]',
    ),
    (lambda c: _with(c, 'tied_embedding', False), 'holds nothing, the config'),
  ],
)
def test_a_config_that_is_none_or_another_is_named(
  tmp_path, exported, config, message
):
  tensors, metadata = exported
  metadata = metadata | {'config': config(metadata['config'])}
  metadata = {k: v for k, v in metadata.items() if v is not None}
  path = tmp_path / 'm.safetensors'
  safetensors.numpy.save_file(tensors, path, metadata)
  with pytest.raises(ValueError, match=rf'm\.safetensors: (?s:.*){message}'):
    own.load(path)


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda x: None, 'holds nothing, the config asks for int8'),
    (lambda x: x[:, :-1], r'holds int8 \[2, 47, 40\]'),
    (lambda x: x.astype(np.int16), r'holds int16 \[2, 48, 40\]'),
  ],
)
def test_a_tensor_that_is_missing_or_another_is_named(
  tmp_path, exported, change, message
):
  tensors, metadata = exported
  name = 'blocks.layer_0.feedforward.w_in_DF.codes'
  tensors = tensors | {name: change(tensors[name])}
  tensors = {
    k: np.ascontiguousarray(v) for k, v in tensors.items() if v is not None
  }
  path = tmp_path / 'm.safetensors'
  safetensors.numpy.save_file(tensors, path, metadata)
  with pytest.raises(ValueError, match=f'{name}: {message}'):
    own.load(path)
  safetensors.numpy.save_file(
    exported[0] | {'spare': np.ones(3)}, path, metadata
  )
  with pytest.raises(ValueError, match='spare: holds float64'):
    own.load(path)
