"""Every family's random model in transformers and in ours: the same logits.

Needs the extra `interchange`; `make interchange` runs it. The models show their
fields: see `family_folders.py`. Whole forward passes, texts in a cache by
chunks, and greedy texts of the engine are compared.
"""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.decoding.engine import generator
from kaiju_jax.decoding.requests import request
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.experiments.studies import check_folder
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange.families import registry
from kaiju_jax.model import rotary
from kaiju_jax.runs import load
from tests.interchange import family_folders as folders
from tests.interchange import toys

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

FULL, SLIDING = folders.FULL, folders.SLIDING
LENGTH = 64
CLASSES = {
  'llama': 'Llama',
  'mistral': 'Mistral',
  'qwen2': 'Qwen2',
  'qwen3': 'Qwen3',
  'smollm3': 'SmolLM3',
  'gemma3_text': 'Gemma3',
  'olmo2': 'Olmo2',
  'olmo3': 'Olmo3',
  'arcee': 'Arcee',
}
# Larger than the quick tests' models: 4 layers, 6 for Gemma.
_SIZES = {
  'vocab_size': 300,
  'num_hidden_layers': 4,
  'num_attention_heads': 9,
  'num_key_value_heads': 3,
  'hidden_size': 63,
  'intermediate_size': 80,
  'max_position_embeddings': 256,
}
_WINDOWS = {'sliding_window': 8, 'layer_types': [FULL, FULL, SLIDING, SLIDING]}
SIZES = {name: dict(_SIZES) for name in CLASSES}
SIZES['mistral'] |= {'sliding_window': 8}
SIZES['qwen2'] |= {**_WINDOWS, 'max_window_layers': 2}
SIZES['qwen3'] |= {**_WINDOWS, 'max_window_layers': 2}
SIZES['smollm3'] |= {
  'layer_types': [FULL] * 4,
  'no_rope_layers': [1, 0, 1, 0],
}
SIZES['gemma3_text'] |= {
  'num_hidden_layers': 6,
  'layer_types': [SLIDING, SLIDING, FULL] * 2,
  'sliding_window': 8,
}
SIZES['olmo3'] |= {
  'sliding_window': 8,
  'layer_types': [SLIDING, SLIDING, SLIDING, FULL],
}


def fields_of(name):
  fields = {**folders.fields_of(name), **SIZES[name]}
  del fields['transformers_version'], fields['dtype']
  return fields


def tokens_of(vocab_size, rows=2, length=LENGTH):
  rng = np.random.default_rng(3)
  return rng.integers(0, vocab_size, (rows, length), dtype=np.int32)


def model_of(name, **changes):
  """Returns a random model whose weights show every field."""
  fields = fields_of(name) | changes
  config_class = CLASSES[name] + (
    'TextConfig' if name == 'gemma3_text' else 'Config'
  )
  config = getattr(transformers, config_class)(
    **{key: value for key, value in fields.items() if key != 'model_type'},
    attn_implementation='eager',
  )
  torch.manual_seed(0)
  model = getattr(transformers, f'{CLASSES[name]}ForCausalLM')(config).eval()
  with torch.no_grad():
    for key, parameter in model.named_parameters():
      if key.endswith('bias'):
        parameter.normal_(1, 0.3)
      elif parameter.ndim == 1:
        parameter.normal_(0 if name == 'gemma3_text' else 1, 0.3)
      elif 'q_proj' in key or 'k_proj' in key:
        parameter.normal_(0, 0.16)
      elif 'embed' in key or 'lm_head' in key:
        parameter.normal_(0, 0.3)
      else:
        parameter.normal_(0, 0.15)
  return model


def theirs_of(model, tokens_BL):
  with torch.inference_mode():
    return model(torch.tensor(tokens_BL, dtype=torch.long)).logits.numpy()


def error_of(ours, theirs):
  assert np.ptp(theirs) > 0.1
  return np.abs(ours - theirs).max() / np.abs(theirs).max()


@pytest.fixture(scope='module', params=list(CLASSES))
def both(request, tmp_path_factory):
  """Returns a family's name, transformers' model, ours, and the folder."""
  name = request.param
  folder = tmp_path_factory.mktemp(name) / 'in'
  model = model_of(name)
  model.save_pretrained(folder, max_shard_size='100kB')
  assert len(list(folder.glob('*.safetensors'))) > 1
  params, config = hugging_face.read(folder)
  return name, model, params, config, folder


def test_whole_rows(both):
  name, model, params, config, _ = both
  tokens_BL = tokens_of(config.vocab_size)
  theirs = theirs_of(model, tokens_BL)
  error = error_of(toys.logits(params, config, tokens_BL), theirs)
  print(f'{name}: whole rows {error:.2g}')
  assert error < 1e-5


def test_texts_in_chunks_by_a_cache(both):
  name, model, params, config, _ = both
  tokens_BL = tokens_of(config.vocab_size)
  theirs = theirs_of(model, tokens_BL)
  decoder = decoder_lib.Decoder(params, config, rows=2, length=LENGTH, page=16)
  rows = [decoder.open(), decoder.open()]
  # Chunks of sixteen, then single tokens.
  cuts = [0, 16, 32, 48, *range(49, LENGTH + 1)]
  hidden = [
    decoder.extend_text(rows, tokens_BL[:, a:b])
    for a, b in itertools.pairwise(cuts)
  ]
  error = error_of(decoder.logits(np.concatenate(hidden, axis=1)), theirs)
  print(f'{name}: in a cache {error:.2g}')
  assert error < 1e-5


def test_the_engine_s_texts(both):
  """Greedy texts, and a second turn whose beginning the cache holds."""
  name, model, params, config, _ = both
  prompt = tokens_of(config.vocab_size, 1, 37)[0]
  decoder = decoder_lib.Decoder(params, config, rows=2, length=96, page=8)
  made = generator.Generator(decoder, chunk=16)

  def ours(tokens):
    greedy = sampling.Sampling(temperature=0)
    (one,) = made.generate([request.Request(tokens, 12, greedy)])
    return list(map(int, one.tokens))

  def theirs(tokens):
    with torch.inference_mode():
      out = model.generate(
        torch.tensor(tokens[None], dtype=torch.long),
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
      )
    return out[0, len(tokens) :].tolist()

  first = ours(prompt)
  assert first == theirs(prompt)
  second = np.concatenate([prompt, first, prompt[:9]]).astype(np.int32)
  assert ours(second) == theirs(second)
  logits_LV = theirs_of(model, second[None])[0].astype(np.float64)
  of_all_LV = logits_LV - np.log(np.exp(logits_LV).sum(-1, keepdims=True))
  want_L = np.take_along_axis(of_all_LV[:-1], second[1:, None], -1)[:, 0]
  got_L = np.asarray(made.score(second).log_probability_L)
  error = np.abs(got_L - want_L).max() / np.abs(logits_LV).max()
  print(f'{name}: log-probabilities of the engine {error:.2g}')
  assert error < 1e-5


def test_the_old_spelling_and_a_wheel_s_own_defaults(both, tmp_path):
  *_, folder = both
  fields = json.loads((folder / 'config.json').read_text())
  old = folders.old_spelling(fields)
  assert registry.read(old).config == registry.read(fields).config
  # A file that says nothing has what its class has.
  family = registry.model_types()[fields['model_type']]
  bare = type(both[1].config)()
  bare.save_pretrained(tmp_path)
  full = json.loads((tmp_path / 'config.json').read_text())
  full.setdefault('model_type', fields['model_type'])
  sparse = {
    key: full[key]
    for key in ('model_type', 'transformers_version', 'rope_parameters')
  }
  assert registry.read(sparse) == registry.read(full)
  assert family in registry.FAMILIES


@pytest.mark.parametrize('kind', ['linear', 'llama3', 'yarn'])
def test_rates_of_far_positions_are_theirs(kind):
  rope = {
    'linear': {'rope_type': 'linear', 'rope_theta': 1e4, 'factor': 4.0},
    'llama3': {**folders.FIELDS['llama']['rope_parameters'], 'factor': 8.0},
    'yarn': {
      'rope_type': 'yarn',
      'rope_theta': 1e6,
      'factor': 20.0,
      'original_max_position_embeddings': 4096,
    },
  }[kind]
  fields = {**fields_of('llama'), 'rope_parameters': rope, 'head_dim': 128}
  fields['max_position_embeddings'] = 131_072
  model = model_of('llama', **fields)
  config = registry.read({**fields, 'model_type': 'llama'}).config
  theirs = model.model.rotary_emb.inv_freq.numpy()
  ours = rotary.rates(128, config.rope_global, config.rope_scaling)
  np.testing.assert_array_max_ulp(ours, theirs, 2)
  factor = model.model.rotary_emb.attention_scaling
  assert abs(config.rope_scaling.attention_factor - factor) < 1e-12


def test_a_vocabulary_beyond_sixteen_bits(tmp_path):
  model = model_of('llama', vocab_size=70_000, num_hidden_layers=1)
  model.save_pretrained(tmp_path / 'in')
  params, config = hugging_face.read(tmp_path / 'in')
  tokens_BL = tokens_of(70_000, 1, 8)
  tokens_BL[0, 3] = 69_999
  theirs = theirs_of(model, tokens_BL)
  assert error_of(toys.logits(params, config, tokens_BL), theirs) < 1e-5


def test_bfloat16_folders_are_read_as_they_are(tmp_path):
  model = model_of('qwen3').to(torch.bfloat16)
  model.save_pretrained(tmp_path / 'in')
  params, config = hugging_face.read(tmp_path / 'in')
  assert config.dtype == 'bfloat16'
  config = dataclasses.replace(config, dtype='float32')
  tokens_BL = tokens_of(config.vocab_size)
  model = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / 'in', dtype=torch.float32
  )
  theirs = theirs_of(model, tokens_BL)
  assert error_of(toys.logits(params, config, tokens_BL), theirs) < 1e-5


def test_an_arcee_folder_is_written_again_with_its_scaling(tmp_path):
  model = model_of('arcee', tie_word_embeddings=True)
  model.save_pretrained(tmp_path / 'in')
  params, config = hugging_face.read(tmp_path / 'in')
  hugging_face.write(tmp_path / 'out', params, config)
  again, config_again = hugging_face.read(tmp_path / 'out')
  assert config_again == config
  jax.tree.map(np.testing.assert_array_equal, again, params)
  back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  tokens_BL = tokens_of(config.vocab_size)
  theirs = theirs_of(model, tokens_BL)
  assert error_of(theirs_of(back, tokens_BL), theirs) < 1e-5


def test_the_check_of_a_folder_sees_other_weights(tmp_path):
  fields = folders.fields_of('qwen2')
  folder = folders.write(tmp_path / 'folder', fields)
  loaded = load.from_anywhere(folder)
  tokens_L = np.random.default_rng(0).integers(0, 90, 40).astype(np.int32)
  found = check_folder.parity(folder, loaded, tokens_L)
  assert found.version == transformers.__version__
  assert found.difference < 1e-5
  table = jax.tree.map(lambda x: 1.5 * x, loaded.params['embedding'])
  params = {**loaded.params, 'embedding': table}
  changed = loaded._replace(params=params)
  assert check_folder.parity(folder, changed, tokens_L).difference > 1e-3
