"""A folder for transformers holds the model, or says what it lost."""

import dataclasses
import json
import re

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange import losses
from kaiju_jax.interchange import own
from kaiju_jax.interchange import plain
from kaiju_jax.interchange import scale
from kaiju_jax.model import deployed
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.quantization import int8
from tests.interchange import family_folders
from tests.interchange import family_oracle
from tests.interchange import toys

TOKENS = np.random.default_rng(3).integers(0, 260, (1, 21), dtype=np.int32)


def logits_of(config, params):
  return toys.logits(params, config, TOKENS)


@pytest.mark.parametrize(
  'config', toys.EXPRESSIBLE.values(), ids=toys.EXPRESSIBLE
)
def test_the_folder_computes_what_the_model_computes(tmp_path, config):
  params = toys.params_of(config)
  assert hugging_face.write(tmp_path / 'out', params, config) == {}
  assert not (tmp_path / 'out/lost.json').exists()
  theirs = family_oracle.logits(
    *family_folders.load(tmp_path / 'out'), TOKENS[0]
  )
  ours = logits_of(config, params)[0]
  np.testing.assert_allclose(ours, theirs, atol=3e-6 * np.abs(theirs).max())
  again, config_again = hugging_face.read(tmp_path / 'out')
  np.testing.assert_array_equal(logits_of(config_again, again)[0], ours)


@pytest.mark.parametrize('name', family_folders.FIELDS)
def test_a_folder_of_any_family_is_written_as_it_was_read(tmp_path, name):
  fields = family_folders.fields_of(name) | {'vocab_size': 256}
  folder = family_folders.write(tmp_path / 'folder', fields)
  params, config = hugging_face.read(folder)
  lost = hugging_face.write(tmp_path / 'out', params, config, like=folder)
  assert lost == {}
  wanted = family_folders.load(folder)
  found = family_folders.load(tmp_path / 'out')
  assert found[0] == wanted[0] | {'torch_dtype': 'float32'}
  assert found[1].keys() == wanted[1].keys()
  for key, x in found[1].items():
    # Gemma's gains lose a bit or two where 1 is added.
    np.testing.assert_allclose(x, wanted[1][key], rtol=3e-7, atol=2e-7)
  other = dataclasses.replace(config, norm_epsilon=0.125)
  with pytest.raises(ValueError, match=r'norm_epsilon is 0\.25, the model'):
    hugging_face.write(tmp_path / 'x', params, other, like=folder)
  coded = dataclasses.replace(
    config, quantization=quantization_config.for_serving()
  )
  with pytest.raises(ValueError, match=r'(?s)int8_matmul: .*int8_kv: '):
    hugging_face.write(tmp_path / 'x', params, coded, like=folder)
  assert not (tmp_path / 'x').exists()


@pytest.mark.parametrize(
  'model',
  [
    {},
    {'d_model': 64, 'tied_embedding': False},
    {'num_kv_heads': 2},
    {'num_kv_heads': 4},
  ],
  ids=['tied', 'untied with √D = 8', 'two heads of keys', 'four'],
)
def test_a_round_trip_gives_the_same_parameters_to_the_bit(tmp_path, model):
  config = toys.changed(
    toys.PLAIN, rope_local=500.0, rope_global=500.0, norm_epsilon=1e-5, **model
  )
  params = toys.params_of(config)
  hugging_face.write(tmp_path / 'out', params, config)
  again, config_again = hugging_face.read(tmp_path / 'out')
  assert config_again == config
  jax.tree.map(np.testing.assert_array_equal, again, params)


def test_scaling_back_finds_the_same_bits_for_every_float():
  # All 2²³ mantissas; for √2, plain division misses one of them.
  every_DV = np.arange(2**23, 2**24).reshape(2, -1).astype(np.float32)
  table_DV = scale.scale(every_DV, 2)
  np.testing.assert_array_equal(table_DV, every_DV * np.float32(1.41421356237))
  assert np.sum(scale.scale(table_DV / np.float32(2**0.5), 2) != table_DV) == 1
  np.testing.assert_array_equal(
    scale.scale(scale.unscale(table_DV, 2), 2), table_DV
  )


def test_untied_tables_of_another_width_scale_to_the_same_bits(tmp_path):
  config = toys.changed(toys.PLAIN, tied_embedding=False)
  params = toys.params_of(config)
  hugging_face.write(tmp_path / 'out', params, config)
  again, _ = hugging_face.read(tmp_path / 'out')
  first, second = (
    np.asarray(p['embedding'].pop('embedding_DV')) for p in (params, again)
  )
  jax.tree.map(np.testing.assert_array_equal, again, params)
  assert np.any(first != second)
  root = np.float32(48**0.5)
  np.testing.assert_array_equal(first * root, second * root)
  np.testing.assert_allclose(first, second, rtol=1.2e-7)


INT8 = {'matmul': 'int8', 'kv': 'int8', 'qk': 'int8'}


@pytest.mark.parametrize(
  'config, names',
  [
    (toys.PLAIN, []),
    (toys.changed(toys.PLAIN, layout='L0 G1 L2', window=64), []),
    (toys.changed(toys.PLAIN, rope_local=0.0), []),
    (toys.changed(toys.PLAIN, layout='L0 G1 L2', window=63), ['windows']),
    (toys.changed(toys.PLAIN, global_share=2), ['shared_kv']),
    (toys.changed(toys.PLAIN, rope_global=0.0), ['rotary']),
    (
      toys.changed(toys.PLAIN, layout='L0 G1', window=64, rope_local=9.0),
      ['rotary'],
    ),
    (toys.changed(toys.PLAIN, INT8), ['int8_matmul', 'int8_kv', 'int8_qk']),
    (toys.changed(toys.PLAIN, {'embedding': 'int8'}), ['int8_embedding']),
    (toys.changed(toys.PLAIN, {'clamp_hidden': 'input_std'}), ['clamp_hidden']),
    (toys.changed(toys.PLAIN, {'clamp_input': 'input_std'}), ['clamp_input']),
    (
      toys.KAIJU,
      [x for x in losses.NAMES if x not in ('rotary', 'int8_embedding')],
    ),
  ],
)
def test_what_has_no_counterpart_is_named(config, names):
  assert list(losses.list_losses(config)) == names


def test_nothing_is_lost_in_silence(tmp_path):
  config = toys.KAIJU
  params = toys.params_of(config)
  names = list(losses.list_losses(config))
  for accepted in [], names[1:]:
    with pytest.raises(ValueError, match='cannot express') as error:
      hugging_face.write(tmp_path / 'out', params, config, accepted=accepted)
    named = re.findall(r'^  (\w+): ', str(error.value), re.MULTILINE)
    assert named == [name for name in names if name not in accepted]
  with pytest.raises(ValueError, match=r"'window': must be one of windows, "):
    hugging_face.write(tmp_path / 'out', params, config, accepted=['window'])
  assert not list(tmp_path.iterdir())
  said = hugging_face.write(tmp_path / 'out', params, config, accepted=names)
  assert json.loads((tmp_path / 'out/lost.json').read_text()) == said
  assert list(said) == names
  assert said['windows'].startswith('4 of 6 layers see 5 positions')
  assert said['shared_kv'].startswith('3 of 6 layers read')


def test_weights_are_those_that_the_forward_pass_reads(tmp_path):
  config, names = toys.KAIJU, list(losses.list_losses(toys.KAIJU))
  params = toys.params_of(config)
  hugging_face.write(tmp_path / 'a', params, config, accepted=names)
  _, tensors = family_folders.load(tmp_path / 'a')
  read = deployed.quantize(params, config)['blocks']
  # L0 L0 G2 L3 L3 G2 is a block of its own, without repeats.
  for index, owner in enumerate([0, 0, 2, 3, 3, 2]):
    layer, owners = read[f'layer_{index}'], read[f'layer_{owner}']
    for name, w in {
      'self_attn.q_proj': layer['attention']['w_q_DHK'],
      'self_attn.k_proj': owners['attention']['w_k_DK'],
      'mlp.up_proj': layer['feedforward']['w_in_DF'],
    }.items():
      value = np.asarray(w.codes[0], np.float32) * np.asarray(w.scales[0])
      np.testing.assert_array_equal(
        tensors[f'model.layers.{index}.{name}.weight'],
        value.reshape(48, -1).T,
      )
  # An export's tree gives the same folder.
  own.save(tmp_path / 'codes', params, config)
  codes, _ = own.load(tmp_path / 'codes')
  hugging_face.write(tmp_path / 'b', codes, config, accepted=names)
  jax.tree.map(
    np.testing.assert_array_equal,
    family_folders.load(tmp_path / 'b')[1],
    tensors,
  )


def test_repeats_of_the_block_come_in_order():
  config = toys.changed(toys.PLAIN, layout='G0 G0 G2 G2')
  params = toys.params_of(config)
  found = plain.weights(params, config)
  for index, layer in enumerate(found.layers):
    held = params['blocks'][f'layer_{index % 2}']['attention']['w_q_DHK']
    np.testing.assert_array_equal(layer.w_q_DHK, held[index // 2])
  np.testing.assert_array_equal(
    found.layers[3].w_v_DUK[:, 0],
    params['blocks']['layer_0']['attention']['w_v_DK'][1],
  )


def test_an_int8_embedding_is_dequantized():
  config = toys.changed(toys.PLAIN, {'embedding': 'int8'})
  params = toys.params_of(config)
  codes, scales = int8.quantize(params['embedding']['embedding_DV'], (0,))
  np.testing.assert_array_equal(
    plain.weights(params, config).embedding_DV,
    np.asarray(codes, np.float32) * np.asarray(scales),
  )


@pytest.mark.parametrize(
  'name, changes',
  [
    ('feedforward', {'feedforward': 'swiglu'}),
    ('norms', {'norms': 'both'}),
    ('qk_norm', {'qk_norm': 'head'}),
    ('qkv_bias', {'qkv_bias': True}),
    ('not_turned', {'layout': 'G0 N1'}),
    ('sink_logit', {'layout': 'G0 G1s'}),
  ],
)
def test_what_arcee_has_not_at_all_cannot_be_accepted(tmp_path, name, changes):
  config = toys.changed(toys.PLAIN, **changes)
  assert list(losses.list_losses(config)) == [name]
  params = toys.params_of(config)
  with pytest.raises(ValueError, match=f'{name}: .*\nWrite our own format'):
    hugging_face.write(tmp_path / 'out', params, config, accepted=losses.NAMES)
  with pytest.raises(ValueError, match='must be one of windows'):
    hugging_face.write(tmp_path / 'out', params, config, accepted=[name])
  assert not list(tmp_path.iterdir())


def test_heads_that_do_not_divide_the_width_are_refused(tmp_path):
  config = toys.changed(toys.PLAIN, num_heads=5)
  with pytest.raises(ValueError, match=r'num_heads=5: must divide .*=48'):
    hugging_face.write(tmp_path / 'out', toys.params_of(config), config)
  assert not list(tmp_path.iterdir())


def test_a_folder_is_whole_and_new_or_not_there(tmp_path):
  params = toys.params_of(toys.PLAIN)
  for there in 'folder', 'file', 'link':
    path = tmp_path / there
    path.symlink_to('nowhere') if there == 'link' else (
      path.mkdir() if there == 'folder' else path.touch()
    )
    with pytest.raises(FileExistsError, match='must be the name of a new'):
      hugging_face.write(path, params, toys.PLAIN)
    (path.rmdir if there == 'folder' else path.unlink)()
  with pytest.raises(FileNotFoundError, match='nowhere'):
    hugging_face.write(tmp_path / 'out', params, toys.PLAIN, 'nowhere.json')
  with pytest.raises(ValueError, match='vocab_size=100: must be at least 256'):
    hugging_face.write(
      tmp_path / 'out', params, toys.changed(toys.PLAIN, vocab_size=100)
    )
  with pytest.raises(KeyError):  # Weights come after the tokenizer's files.
    hugging_face.write(tmp_path / 'out', {'embedding': {}}, toys.PLAIN)
  for name, message in ('', 'must name a new'), ('gs://a/b', 'is an address'):
    with pytest.raises(ValueError, match=message):
      hugging_face.write(name, params, toys.PLAIN)
  assert not list(tmp_path.iterdir())


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('interchange') / 'out'
  hugging_face.write(path, toys.params_of(toys.PLAIN), toys.PLAIN)
  return path


def rewritten(folder, path, fields=None, tensors=None):
  """Writes a folder again with some fields and tensors changed, at `path`."""
  held_fields, held_tensors = family_folders.load(folder)
  new_fields = {**held_fields, **(fields or {})}
  new_tensors = {**held_tensors, **(tensors or {})}
  path.mkdir()
  (path / 'config.json').write_text(
    json.dumps({k: v for k, v in new_fields.items() if v != 'absent'})
  )
  safetensors.numpy.save_file(
    {
      k: np.ascontiguousarray(v)
      for k, v in new_tensors.items()
      if v is not None
    },
    path / 'model.safetensors',
    {'format': 'pt'},
  )
  return path


# What a field itself may be is in `test_families.py`; here it is at odds with
# the tensors.
@pytest.mark.parametrize(
  'fields, message',
  [
    ({'sliding_window': 64}, 'sliding_window=64: not a field'),
    *(
      ({'num_key_value_heads': x}, r'k_proj.weight: .*\[8, 48\].*\[32, 48\]')
      for x in ('absent', None)
    ),
    ({'attention_bias': 0}, 'attention_bias=0: must be False'),
    ({'rope_theta': 5e5}, 'rope_theta=500000.0: must be .*10000.0'),
    (
      {'model_type': 'llama', 'hidden_act': 'silu'},
      r'gate_proj\.weight: missing',
    ),
    ({'vocab_size': 'absent'}, r'asks for \[32000, 48\]'),
    (
      {'tie_word_embeddings': True},
      'lm_head.weight: differs from model.embed_tokens.weight',
    ),
    ({'intermediate_size': 41}, r'down_proj.weight: .*\[48, 40\].*\[48, 41\]'),
    ({'num_hidden_layers': 4}, r'layers\.3\.\S+: missing'),
    ({'num_hidden_layers': 2}, r'layers\.2\.\S+: no such tensor'),
  ],
)
def test_a_config_that_is_not_the_tensors_is_refused_by_field(
  tmp_path, folder, fields, message
):
  other = rewritten(folder, tmp_path / 'other', fields)
  with pytest.raises(ValueError, match=f'other: (?s:.*){message}'):
    hugging_face.read(other)


UP = 'model.layers.1.mlp.up_proj'


def with_one(value):
  tensor = np.zeros((40, 48), np.float32)
  tensor[2, 5] = value
  return tensor


@pytest.mark.parametrize(
  'tensors, message',
  [
    ({f'{UP}.weight': None}, rf'{UP}\.weight: missing'),
    ({'lm_head.weight': None}, r'lm_head\.weight: missing'),
    (
      {f'{UP}.bias': np.zeros(40, np.float32)},
      r'up_proj\.bias: no such tensor',
    ),
    (
      {f'{UP}.weight': np.zeros((48, 40), np.float32)},
      r'up_proj\.weight: has shape \[48, 40\], config.json asks for \[40, 48\]',
    ),
    (
      {f'{UP}.weight': np.zeros((40, 48), np.int8)},
      r'up_proj\.weight: holds I8, must be one of F32',
    ),
    (
      {'lm_head.weight': np.zeros(3, np.float32)},
      r'lm_head\.weight: has shape \[3\]',
    ),
    (
      {f'{UP}.weight': with_one(np.nan)},
      r'up_proj\.weight: holds nan at \[2, 5\]; must be finite',
    ),
    (
      {f'{UP}.weight': with_one(-np.inf)},
      r'up_proj\.weight: holds -inf at \[2, 5\]',
    ),
  ],
)
def test_tensors_that_are_not_the_models_are_named(
  tmp_path, folder, tensors, message
):
  other = rewritten(folder, tmp_path / 'other', tensors=tensors)
  with pytest.raises(ValueError, match=rf'other: \S*{message}'):
    hugging_face.read(other)


def test_fields_that_are_missing_have_the_classs_defaults(tmp_path, folder):
  names = ('rms_norm_eps', 'rope_parameters', 'rope_theta', 'hidden_act')
  names += ('attention_bias', 'mlp_bias', 'rope_scaling', 'tie_word_embeddings')
  other = rewritten(folder, tmp_path / 'other', dict.fromkeys(names, 'absent'))
  _, config = hugging_face.read(other)
  assert (config.norm_epsilon, config.rope_global) == (1e-5, 10_000.0)
  # Before version 5 the base stood by itself.
  older = {'rope_parameters': 'absent', 'rope_theta': 500}
  _, config = hugging_face.read(rewritten(folder, tmp_path / 'older', older))
  assert config.rope_global == config.rope_local == 500.0


def test_a_tied_folder_of_others_becomes_two_tables(tmp_path, folder):
  other = rewritten(
    folder,
    tmp_path / 'other',
    {'tie_word_embeddings': True},
    {'lm_head.weight': None},
  )
  params, config = hugging_face.read(other)
  assert not config.tied_embedding
  table = family_folders.load(other)[1]['model.embed_tokens.weight'].T
  np.testing.assert_array_equal(params['embedding']['head_DV'], table)
  np.testing.assert_allclose(
    params['embedding']['embedding_DV'] * 48**0.5, table, rtol=1.2e-7
  )


def test_weights_in_several_files_and_bfloat16(tmp_path, folder):
  _, tensors = family_folders.load(folder)
  names = sorted(tensors)
  files = {'one.safetensors': names[::2], 'two.safetensors': names[1::2]}
  other = rewritten(folder, tmp_path / 'other')
  (other / 'model.safetensors').unlink()
  for file, held in files.items():
    safetensors.numpy.save_file(
      {name: tensors[name].astype(ml_dtypes.bfloat16) for name in held},
      other / file,
    )
  index = other / 'model.safetensors.index.json'
  where = {name: file for file, held in files.items() for name in held}
  index.write_text(json.dumps({'metadata': {}, 'weight_map': where}))
  params, config = hugging_face.read(other)
  assert config.dtype == 'bfloat16'
  held = params['blocks']['layer_0']['feedforward']['w_in_DF'][1]
  assert held.dtype == np.float32
  np.testing.assert_array_equal(
    held, tensors[f'{UP}.weight'].T.astype(ml_dtypes.bfloat16)
  )
  (other / 'two.safetensors').unlink()
  with pytest.raises(FileNotFoundError, match=r'two\.safetensors: not found'):
    hugging_face.read(other)


@pytest.mark.parametrize(
  'data, message',
  [
    ([], r'must hold an object with weight_map'),
    ({}, r'weight_map=None: must be an object'),
    ({'weight_map': []}, r'weight_map=\[\]: must be an object'),
    ({'weight_map': {}}, r'weight_map=\{\}: must be an object'),
    ({'weight_map': {'a': 3}}, r"weight_map\['a'\]=3: must be the name of a"),
    ({'weight_map': {'a': 'b', 'c': None}}, r"weight_map\['c'\]=None: must"),
    (
      {'weight_map': {'a': '../one.safetensors'}},
      r"weight_map\['a'\]='\.\./one\.safetensors': must be the name of a file",
    ),
    ({'weight_map': {'a': ''}}, r"weight_map\['a'\]='': must be the name"),
  ],
)
def test_an_index_that_names_no_files_is_refused(
  tmp_path, folder, data, message
):
  other = rewritten(folder, tmp_path / 'other')
  (other / 'model.safetensors').unlink()
  index = other / 'model.safetensors.index.json'
  index.write_text(json.dumps(data))
  with pytest.raises(
    ValueError, match=rf'other: model\.safetensors\.index\.json: {message}'
  ):
    hugging_face.read(other)


def test_what_is_no_folder_of_weights(tmp_path, folder):
  with pytest.raises(FileNotFoundError, match='expected a folder of Hugging'):
    hugging_face.read(tmp_path)
  with pytest.raises(ValueError, match='is an address'):
    hugging_face.read('https://huggingface.co/a/b')
  other = rewritten(folder, tmp_path / 'other')
  (other / 'model.safetensors').write_bytes(b'nothing')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    hugging_face.read(other)
  (other / 'model.safetensors').unlink()
  with pytest.raises(FileNotFoundError, match='weights must be safetensors'):
    hugging_face.read(other)
  (other / 'config.json').write_text('[]')
  with pytest.raises(ValueError, match=r'config\.json: must hold an object'):
    hugging_face.read(other)
