"""Every family against plain numpy, and config.json read in all spellings."""

import copy

import jax
import numpy as np
import pytest

from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange.families import registry
from tests.interchange import family_folders as folders
from tests.interchange import family_oracle
from tests.interchange import toys

NAMES = list(folders.FIELDS)
LENGTH = 40
TOKENS = np.random.default_rng(3).integers(0, 90, (1, LENGTH), dtype=np.int32)
FULL, SLIDING = folders.FULL, folders.SLIDING


@pytest.mark.parametrize('name', NAMES)
def test_a_family_computes_what_plain_numpy_computes(tmp_path, name):
  fields = folders.fields_of(name)
  tensors = folders.tensors_of(fields)
  params, config = hugging_face.read(
    folders.write(tmp_path / 'in', fields, tensors)
  )
  want = family_oracle.logits(fields, tensors, TOKENS[0])
  got = toys.logits(params, config, TOKENS)[0]
  assert np.ptp(want) > 0.1
  np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


# {dotted field: another value}, for every field that a family's model shows.
_SHOWN = {'rms_norm_eps': 1e-6}
_ROPE = {'rope_parameters.rope_theta': 900.0}
_WINDOW = {'sliding_window': 7}
FLIPS = {
  'llama': {
    **_SHOWN,
    **_ROPE,
    'hidden_act': 'gelu_pytorch_tanh',
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 500.0},
    'rope_parameters.factor': 2.0,
    'rope_parameters.low_freq_factor': 2.0,
    'rope_parameters.high_freq_factor': 9.0,
    'rope_parameters.original_max_position_embeddings': 32,
  },
  'mistral': {**_SHOWN, **_ROPE, **_WINDOW},
  'qwen2': {
    **_SHOWN,
    **_ROPE,
    **_WINDOW,
    'layer_types': [SLIDING, SLIDING],
    'rope_parameters.factor': 2.0,
    'rope_parameters.beta_fast': 2.0,
    'rope_parameters.beta_slow': 0.1,
    'rope_parameters.attention_factor': 1.0,
    'rope_parameters.original_max_position_embeddings': 32,
  },
  'qwen3': {**_SHOWN, **_ROPE, **_WINDOW, 'rope_parameters.factor': 2.0},
  'smollm3': {**_SHOWN, **_ROPE, 'no_rope_layers': [1, 1]},
  'gemma3_text': {
    **_SHOWN,
    **_WINDOW,
    'hidden_activation': 'silu',
    'query_pre_attn_scalar': 8,
    'layer_types': [FULL, SLIDING, FULL],
    f'rope_parameters.{FULL}.rope_theta': 90.0,
    f'rope_parameters.{FULL}.factor': 2.0,
    f'rope_parameters.{SLIDING}.rope_theta': 90.0,
  },
  'olmo2': {**_SHOWN, **_ROPE},
  'olmo3': {
    **_SHOWN,
    **_WINDOW,
    f'rope_parameters.{FULL}.factor': 2.0,
    f'rope_parameters.{FULL}.rope_theta': 900.0,
    f'rope_parameters.{SLIDING}.rope_theta': 900.0,
  },
  'arcee': {**_SHOWN, **_ROPE, 'rope_parameters.factor': 2.0},
}


def changed(fields, path, value):
  """Returns the fields with one changed; 'absent' takes it away."""
  fields = copy.deepcopy(fields)
  *parents, last = path.split('.')
  node = fields
  for name in parents:
    node = node[name]
  if value == 'absent':
    node.pop(last, None)
  else:
    node[last] = value
  return fields


@pytest.mark.parametrize('name', NAMES)
def test_every_field_is_shown_by_the_model_and_read(name):
  """A model whose logits hide a field would hold nothing about it."""
  fields = folders.fields_of(name)
  tensors = folders.tensors_of(fields)
  want = family_oracle.logits(fields, tensors, TOKENS[0])
  reading = registry.read(fields)
  for path, value in FLIPS[name].items():
    other = changed(fields, path, value)
    got = family_oracle.logits(other, tensors, TOKENS[0])
    assert np.abs(got - want).max() > 1e-3 * np.abs(want).max(), path
    other.pop('_sliding_window_pattern', None)
    found = registry.read(other)
    assert (found.config, found.query_scale) != (
      reading.config,
      reading.query_scale,
    ), path


@pytest.mark.parametrize('name', NAMES)
def test_both_spellings_say_the_same_and_may_not_differ(name):
  fields = folders.fields_of(name)
  want = registry.read(fields)
  old = folders.old_spelling(fields)
  assert registry.read(old) == want
  both = {**old, **fields}
  both.pop('_sliding_window_pattern', None)
  assert registry.read(both) == want
  both['rope_theta'] = 12.0
  with pytest.raises(ValueError, match=r'^rope_theta=12\.0: must be rope_para'):
    registry.read(both)


def test_a_scaling_that_differs_between_the_spellings_is_refused():
  fields = folders.fields_of('llama')
  fields['rope_scaling'] = {**fields['rope_parameters'], 'factor': 8.0}
  with pytest.raises(ValueError, match=r'^rope_scaling=.*: must be rope_par'):
    registry.read(fields)


@pytest.mark.parametrize('name', ['gemma3_text', 'olmo3'])
def test_only_full_layers_angles_are_scaled(name):
  fields = folders.fields_of(name)
  fields['rope_parameters'][SLIDING] |= {'rope_type': 'linear', 'factor': 2.0}
  message = r"sliding_attention\.rope_type='linear': must be 'default': only"
  with pytest.raises(ValueError, match=message):
    registry.read(fields)


def test_a_sparse_file_has_the_defaults_of_its_class():
  """The language model's part of google/gemma-3-4b-it says no more."""
  found = registry.read(
    {
      'model_type': 'gemma3',
      'architectures': ['Gemma3ForConditionalGeneration'],
      'boi_token_index': 255_999,
      'eoi_token_index': 256_000,
      'eos_token_id': [1, 106],
      'image_token_index': 262_144,
      'initializer_range': 0.02,
      'mm_tokens_per_image': 256,
      'torch_dtype': 'bfloat16',
      'transformers_version': '4.50.0.dev0',
      'vision_config': {'model_type': 'siglip_vision_model'},
      'text_config': {
        'hidden_size': 2560,
        'intermediate_size': 10_240,
        'model_type': 'gemma3_text',
        'num_hidden_layers': 34,
        'rope_scaling': {'factor': 8.0, 'rope_type': 'linear'},
        'sliding_window': 1024,
      },
    }
  )
  config = found.config
  assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
  assert (config.vocab_size, config.max_length) == (262_208, 131_072)
  assert (config.rope_global, config.rope_local) == (1e6, 1e4)
  assert config.layout.startswith('L0 L1 L2 L3 L4 G5 L6')
  assert (config.window, config.tied_embedding) == (1024, True)
  assert config.rope_scaling.layers == 'global'
  assert (config.norms, config.qk_norm) == ('both', 'head')


@pytest.mark.parametrize(
  'name, absent, wanted',
  [
    ('llama', 'num_key_value_heads', {'num_kv_heads': 6}),
    ('mistral', 'num_key_value_heads', 'num_key_value_heads=8: must divide'),
    ('mistral', 'sliding_window', {'window': 4096}),
    ('qwen3', 'head_dim', {'head_dim': 128}),
    ('smollm3', 'rope_parameters', {'rope_global': 2e6}),
    ('olmo3', 'rope_parameters', 'rope_theta: missing; must be given, because'),
    ('olmo2', 'rms_norm_eps', {'norm_epsilon': 1e-5}),
    ('llama', 'rms_norm_eps', {'norm_epsilon': 1e-6}),
    ('gemma3_text', 'tie_word_embeddings', {'tied_embedding': True}),
    ('smollm3', 'no_rope_layers', {'layout': 'G0 N1'}),
    ('olmo3', 'layer_types', {'layout': 'L0 L1'}),
    ('llama', 'head_dim', 'hidden_size=30: must be even heads, not of 5'),
  ],
)
def test_an_absent_field_has_its_class_s_default(name, absent, wanted):
  fields = changed(folders.fields_of(name), absent, 'absent')
  if isinstance(wanted, str):
    with pytest.raises(ValueError, match=f'^{wanted}'):
      registry.read(fields)
    return
  config = registry.read(fields).config
  assert {field: getattr(config, field) for field in wanted} == wanted


def test_no_window_and_layers_that_slide_without_rotation():
  fields = changed(folders.fields_of('mistral'), 'sliding_window', None)
  config = registry.read(fields).config
  assert not config.layout and config.period == 1
  fields = folders.fields_of('smollm3')
  fields |= {'use_sliding_window': True, 'sliding_window': 5}
  del fields['layer_types']
  config = registry.read(fields).config
  assert (config.layout, config.rope_local) == ('G0 L1', 0.0)
  fields['layer_types'] = [SLIDING, SLIDING]
  with pytest.raises(ValueError, match=r'^no_rope_layers=.*: must rotate al'):
    registry.read(fields)


# Mutations of every family's file that has the field: (the field, its value,
# what the one line says of it).
_NUMBERS = ('12', -1, 0, True, None, 2.5, [3], float('inf'))
_COUNTS = (
  'vocab_size',
  'hidden_size',
  'intermediate_size',
  'num_hidden_layers',
  'num_attention_heads',
  'max_position_embeddings',
)
MUTATIONS = [
  *((name, value, 'must be int') for name in _COUNTS for value in _NUMBERS),
  ('num_key_value_heads', 4, 'must divide num_attention_heads=6'),
  *(('num_key_value_heads', x, 'must be int') for x in ('2', 0, True)),
  ('head_dim', 7, 'must be even'),
  ('head_dim', {}, 'must be int'),
  ('rms_norm_eps', 0, 'must lie between 0 and 1'),
  ('rms_norm_eps', 'small', 'must be float'),
  ('rms_norm_eps', float('nan'), 'must be float'),
  ('hidden_act', 'gelu', 'must be '),
  ('hidden_act', None, 'must be '),
  ('hidden_activation', 'gelu', 'must be one of'),
  ('tie_word_embeddings', 'yes', 'must be true or false'),
  ('tie_word_embeddings', 1, 'must be true or false'),
  ('attention_bias', True, 'must be False'),
  ('mlp_bias', True, 'must be False'),
  ('sliding_window', 0, 'must be int'),
  ('sliding_window', 'all', 'must be '),
  ('layer_types', [FULL], 'must be a list of'),
  ('layer_types', 'full_attention', 'must be a list of'),
  ('layer_types', ['chunked_attention'] * 3, 'must be one of'),
  ('use_sliding_window', 'no', 'must be true or false'),
  ('max_window_layers', -1, 'must be int'),
  ('no_rope_layers', [1], 'must be a list of'),
  ('no_rope_layers', [True, False], 'must be one of'),
  ('no_rope_layers', [2, 2], 'must be one of'),
  ('query_pre_attn_scalar', 0, 'must be float'),
  ('_sliding_window_pattern', 2, 'must draw the same layers'),
  ('rope_parameters', [], 'must be an object'),
  ('rope_parameters', 'default', 'must be an object'),
  ('rope_parameters.rope_theta', 0.5, 'must be float'),
  ('rope_parameters.rope_theta', '1e4', 'must be float'),
  ('rope_parameters.rope_type', 'dynamic', "'default', 'linear', 'llama3', 'y"),
  ('rope_parameters.rope_type', 'longrope', 'must be one of'),
  ('rope_parameters.rope_type', 3, 'must be one of'),
  ('rope_parameters.type', 'linear', 'the same field'),
  ('rope_parameters.factor', 0.5, 'must be float, at least 1'),
  ('rope_parameters.factor', 'absent', 'must be float'),
  ('rope_parameters.low_freq_factor', 4.0, 'must be less than high_freq_fact'),
  ('rope_parameters.low_freq_factor', 'absent', 'must be float'),
  ('rope_parameters.beta_fast', 0.1, 'must be less than beta_fast=0.1'),
  ('rope_parameters.truncate', False, 'must be True'),
  ('rope_parameters.partial_rotary_factor', 0.5, 'must be 1.0'),
  ('rope_parameters.short_factor', [1.0], 'not a field'),
  (f'rope_parameters.{SLIDING}.factor', 2.0, 'not a field'),
  (f'rope_parameters.{SLIDING}.rope_type', 'ntk', 'must be one of'),
  (f'rope_parameters.{FULL}', 'absent', ''),
  ('rope_parameters.chunked_attention', {}, 'not a field'),
  ('rope_scaling', 8, 'must be an object'),
  ('rope_scaling', {'type': 'su'}, 'must be one of'),
  ('quantization_config', {'quant_method': 'awq'}, 'weights must be bf16'),
  ('quantization_config', {}, 'quant_method=None'),
  ('quantization_config', 'gptq', 'weights must be bf16'),
  ('auto_map', {'AutoModel': 'modeling.X'}, 'code of its own, which is never'),
  ('attn_logit_softcapping', 50.0, 'must be None: attention logits are not'),
  ('final_logit_softcapping', 30.0, 'must be None: logits are not capped'),
  ('use_bidirectional_attention', True, 'must be False'),
  ('partial_rotary_factor', 0.5, 'must be 1.0'),
  ('rope_interleaved', True, 'must be False'),
  ('num_experts', 8, 'not a field'),
  ('clip_qkv', 8.0, 'not a field'),
  ('logit_scale', 0.5, 'not a field'),
  ('model_type', 'gemma2', 'cannot be read; can: arcee, gemma3, gemma3_text'),
  ('model_type', None, 'cannot be read'),
  ('model_type', ['llama'], 'cannot be read'),
]
# Values that another family, or the old spelling, may well have.
_ALLOWED = {('rope_parameters', None), ('sliding_window', None)}


def _applies(fields, path):
  """Whether a mutation of this field says anything about this file."""
  *parents, last = path.split('.')
  node = fields
  for name in parents:
    node = node.get(name, {})
  if path.startswith('rope_parameters.'):
    if FULL in fields['rope_parameters']:
      return parents[-1] == SLIDING or 'chunked' in path
    kind = fields['rope_parameters']['rope_type']
    shown = {
      'factor': kind != 'default',
      'beta_fast': kind == 'yarn',
      'truncate': kind == 'yarn',
      'low_freq_factor': kind == 'llama3',
      'type': kind in ('llama3', 'yarn'),
      SLIDING: False,
      FULL: False,
    }
    return len(parents) == 1 and shown.get(last, True)
  if path in ('max_window_layers',):
    return bool(node.get('use_sliding_window')) and 'layer_types' not in node
  is_new = path in (
    'quantization_config auto_map attn_logit_softcapping rope_scaling'
    ' final_logit_softcapping use_bidirectional_attention num_experts'
    ' partial_rotary_factor rope_interleaved clip_qkv logit_scale'
  )
  return is_new or last in node


@pytest.mark.parametrize('name', NAMES)
def test_a_mutated_file_is_refused_by_one_line(name):
  fields = folders.fields_of(name)
  count = 0
  for path, value, remedy in MUTATIONS:
    if not _applies(fields, path) or (path, value) in list(_ALLOWED):
      continue
    if path == 'sliding_window' and SLIDING not in fields.get(
      'layer_types', [SLIDING]
    ):
      continue
    with pytest.raises(ValueError) as error:
      registry.read(changed(fields, path, value))
    said = str(error.value)
    assert '\n' not in said and len(said) < 300, said
    last = path.rpartition('.')[2].replace('beta_fast', 'beta_')
    assert last in said and remedy in said, (path, value, said)
    count += 1
  assert count >= 60


@pytest.mark.parametrize(
  'name',
  (
    *('gemma', 'gemma2', 'gemma3n', 'gemma4', 'gemma4_text', 'qwen3_5'),
    *('qwen2_moe', 'qwen3_moe', 'mixtral', 'ministral', 'ministral3'),
    *('olmo', 'phi3', 'gpt2'),
  ),
)
def test_another_family_is_refused_by_name(name):
  with pytest.raises(ValueError, match=f"^model_type='{name}': cannot be read"):
    registry.read({**folders.fields_of('llama'), 'model_type': name})


def test_an_unknown_field_can_be_accepted_by_name(tmp_path):
  fields = {**folders.fields_of('llama'), 'made_by': 'us'}
  fields['rope_parameters']['note'] = 3
  with pytest.raises(ValueError, match='note=3: not a field'):
    registry.read(fields, ['made_by'])
  with pytest.raises(ValueError, match=r'^made_by=.*: not a field'):
    registry.read(fields, ['rope_parameters.note'])
  accepted = ['made_by', 'rope_parameters.note']
  assert registry.read(fields, accepted) == registry.read(
    folders.fields_of('llama')
  )
  # What is known cannot be accepted away.
  fields['mlp_bias'] = True
  with pytest.raises(ValueError, match='mlp_bias=True: must be False'):
    registry.read(fields, [*accepted, 'mlp_bias'])
  folder = folders.write(tmp_path / 'in', fields, {})
  with pytest.raises(ValueError, match=r'in: config\.json: mlp_bias=True'):
    hugging_face.read(folder, accepted)


@pytest.mark.parametrize(
  'name, value',
  [
    *(('_model_name_or_path', 'a/b'), ('_commit_hash', None), ('_x', [1])),
    *(('unk_token_id', 0), ('image_token_index', 7), ('token_id', 3)),
    *(('forced_eos_token_id', [1]), ('peft_version', '1'), ('dtype', 'x')),
    *(('torch_dtype', 'x'), ('num_experts', None), ('temperature', 0.6)),
    *(('max_length', 20), ('bad_words_ids', [[1]]), ('pruned_heads', {})),
  ],
)
def test_fields_that_keep_books_change_nothing(name, value):
  wanted = registry.read(folders.fields_of('llama'))
  assert registry.read({**folders.fields_of('llama'), name: value}) == wanted


@pytest.mark.parametrize(
  'name, value',
  [
    *(('token_ids_scale', 1), ('pruned_heads', {'0': [1]}), ('version', 2)),
    *(('unk_token', 'x'), ('dtypes_of_experts', 'x'), ('_', 1)),
  ],
)
def test_fields_of_no_such_kind_are_refused_with_the_flag(name, value):
  known = 'must be' if name == 'pruned_heads' else f'--accept_field={name} ign'
  with pytest.raises(ValueError, match=f'^{name}=.*{known}'):
    registry.read({**folders.fields_of('llama'), name: value})


def test_gemma_s_names_and_what_is_skipped(tmp_path, caplog):
  """The Hub's prefix and that of version 5, beside an images' part."""
  fields = folders.fields_of('gemma3_text')
  tensors = folders.tensors_of(fields)
  outer = {
    'model_type': 'gemma3',
    'text_config': fields,
    'vision_config': {'hidden_size': 8},
    'tie_word_embeddings': True,
  }
  want, want_config = hugging_face.read(
    folders.write(tmp_path / 'text', fields, tensors)
  )
  for prefix, vision in (
    ('language_model.model.', 'vision_tower.x.weight'),
    ('model.language_model.', 'model.multi_modal_projector.x.weight'),
  ):
    renamed = {
      name.replace('model.', prefix, 1): x for name, x in tensors.items()
    }
    renamed[vision] = np.zeros(3, np.float32)
    folder = folders.write(tmp_path / prefix[:4], outer, renamed)
    got, config = hugging_face.read(folder)
    assert config == want_config
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert f'such as {vision}' in caplog.text
  outer['tie_word_embeddings'] = False
  with pytest.raises(ValueError, match='tie_word_embeddings=False: must be Tr'):
    registry.read(outer)
  outer['text_config']['model_type'] = 'gemma2'
  del outer['tie_word_embeddings']
  with pytest.raises(ValueError, match=r"^text_config\.model_type='gemma2': m"):
    registry.read(outer)


def test_a_tied_folder_needs_no_head_and_old_rates_are_skipped(tmp_path):
  fields = folders.fields_of('smollm3')
  tensors = folders.tensors_of(fields)
  assert 'lm_head.weight' not in tensors
  params, config = hugging_face.read(
    folders.write(tmp_path / 'without', fields, tensors)
  )
  assert config.tied_embedding and list(params['embedding']) == ['embedding_DV']
  tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].copy()
  rates = 'model.layers.1.self_attn.rotary_emb.inv_freq'
  tensors[rates] = np.ones(4, np.float32)
  again, _ = hugging_face.read(folders.write(tmp_path / 'w', fields, tensors))
  jax.tree.map(np.testing.assert_array_equal, again, params)
  tensors['lm_head.weight'][0] += 1
  with pytest.raises(ValueError, match=r'lm_head\.weight: differs from model'):
    hugging_face.read(folders.write(tmp_path / 'other', fields, tensors))
