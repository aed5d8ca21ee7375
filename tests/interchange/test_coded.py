"""Codes that an import keeps are those of the folder, or are refused."""

import jax
import ml_dtypes
import numpy as np
import pytest

from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.interchange import coded
from kaiju_jax.interchange import own
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import defaults
from kaiju_jax.runs import exchange
from kaiju_jax.runs import load
from kaiju_jax.storage import tensor_file
from tests.interchange import family_folders
from tests.interchange.templates import shapes


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A bfloat16 folder with biases, windows and a chat template."""
  root = tmp_path_factory.mktemp('coded')
  fields = family_folders.fields_of('qwen2')
  fields |= {'vocab_size': 420, 'num_hidden_layers': 4}
  fields['layer_types'] = 2 * fields['layer_types']
  tensors = {
    name: x.astype(ml_dtypes.bfloat16)
    for name, x in family_folders.tensors_of(fields).items()
  }
  found = family_folders.write(root / 'in', fields, tensors)
  shapes.write_folder(found)
  (found / 'chat_template.jinja').write_text(shapes.TEMPLATES['turns'])
  (found / 'generation_config.json').write_text('{"temperature": 0.5}')
  return found


@pytest.fixture(scope='module')
def kept(folder):
  """Its codes in our own format."""
  said = exchange.read(folder, folder.parent / 'out', codes=True)
  assert coded.hash_source(folder) in said
  return folder.parent / 'out'


@pytest.mark.parametrize('arm', ['all', 'weights'])
def test_both_arms_have_the_bits_of_the_folder(folder, kept, arm):
  quantization = quantization_config.for_serving(arm)
  one, other = (
    load.from_anywhere(path, quantization=quantization)
    for path in (folder, kept)
  )
  assert one.config == other.config
  assert jax.tree.structure(one.params) == jax.tree.structure(other.params)
  jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
  dtypes = [[x.dtype for x in jax.tree.leaves(x.params)] for x in (one, other)]
  assert dtypes[0] == dtypes[1] and dtypes[0].count(np.int8) > 10
  tokenizer = tokenizer_lib.load(other.tokenizer)
  theirs, ours = (defaults.read(x, tokenizer) for x in (one, other))
  assert ours.format.digest == theirs.format.digest
  assert ours.generation == theirs.generation


def test_floats_are_refused_and_the_source_is_in_the_digest(folder, kept):
  quantization = quantization_config.for_serving('none')
  with pytest.raises(ValueError, match=r"codes alone, not for --int8='none'"):
    load.from_anywhere(kept, quantization=quantization)
  before = coded.hash_source(folder)
  file = folder.parent / 'other' / 'model.safetensors'
  file.parent.mkdir()
  (file.parent / 'config.json').write_bytes(
    (folder / 'config.json').read_bytes()
  )
  file.write_bytes((folder / 'model.safetensors').read_bytes())
  assert coded.hash_source(file.parent) == before
  data = bytearray(file.read_bytes())
  data[-1] ^= 1
  file.write_bytes(data)
  assert coded.hash_source(file.parent) != before


def test_the_bytes_that_are_read_make_the_digest(tmp_path, kept):
  metadata = tensor_file.read_metadata(kept / own.WEIGHTS, own.FORMAT)
  params, config = own.load(kept / own.WEIGHTS)
  same, other = tmp_path / 'same', tmp_path / 'other'
  gain_D = params['final_norm']['gain_D']
  changed = {**params, 'final_norm': {'gain_D': gain_D.at[0].add(1)}}
  for path, tree in (same, params), (other, changed):
    path.mkdir()
    # Both claim to be of one source, and are whole.
    source = metadata[own.SOURCE]
    own.save(path / own.WEIGHTS, tree, config, source=source)
  quantization = quantization_config.for_serving()
  first, again, forged = (
    load.from_anywhere(path, '', quantization) for path in (kept, same, other)
  )
  assert load.digest(first) == load.digest(again) != load.digest(forged)
  # Nothing is read a second time.
  assert load.digest(first._replace(params=None)) == load.digest(first)
  weights = quantization_config.for_serving('weights')
  found = load.from_anywhere(kept, quantization=weights)
  assert found.content == first.content
  assert load.digest(found) != load.digest(first)


def flip(data, place):
  """Returns a file's bytes with another one at a place."""
  return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
  'change',
  [
    lambda data: flip(data, len(data) - 1),
    lambda data: flip(data, len(data) // 2),
    lambda data: data.replace(b'\\"window\\": 5', b'\\"window\\": 6'),
    lambda data: flip(data, data.index(b'"source":"') + len('"source":"')),
    lambda data: data[:-1],
  ],
  ids=['last byte', 'middle', 'config', 'source', 'short'],
)
@pytest.mark.parametrize('is_served', [True, False])
def test_a_file_that_was_changed_is_refused(tmp_path, kept, change, is_served):
  data = (kept / 'model.safetensors').read_bytes()
  (tmp_path / 'model.safetensors').write_bytes(change(data))
  assert change(data) != data
  quantization = quantization_config.for_serving() if is_served else None
  with pytest.raises(ValueError, match=r'is damaged|not a whole safetensors'):
    load.from_export(tmp_path, '', quantization)
