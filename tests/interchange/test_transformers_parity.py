"""transformers computes our logits from our folders, and we from its own.

Needs the extra `interchange`; `make interchange` runs it.
"""

import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.interchange import hugging_face
from kaiju_jax.model import transformer
from tests.interchange import toys

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOKENS = np.random.default_rng(3).integers(0, 260, (2, 64), dtype=np.int32)


def ours_of(params, config):
  model = transformer.Transformer(config)
  seen = visibility.concatenate([visibility.causal(64)] * 2)
  return np.asarray(model.apply({'params': params}, TOKENS, seen))


def theirs_of(model):
  with torch.inference_mode():
    return model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


def assert_close(one, other):
  assert np.ptp(other) > 0.1
  np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(
  'config',
  [
    toys.PLAIN,
    toys.changed(
      toys.PLAIN,
      {'bungee': True},
      tied_embedding=False,
      norm_epsilon=0.25,
      rope_global=77.0,
      layout='G0 G1 G2 G3',
    ),
    toys.changed(toys.PLAIN, num_kv_heads=2),
  ],
  ids=[
    'tied',
    'untied, Bungee, another epsilon, base and depth',
    'two heads of keys and values',
  ],
)
def test_transformers_computes_our_logits(tmp_path, config):
  params = toys.params_of(config)
  hugging_face.write(tmp_path / 'out', params, config)
  model, report = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / 'out', output_loading_info=True
  )
  assert type(model).__name__ == 'ArceeForCausalLM'
  assert not any(report.values())
  assert_close(ours_of(params, config), theirs_of(model))


@pytest.mark.parametrize('tied, heads', [(True, 1), (False, 2), (False, 4)])
def test_we_compute_transformers_logits(tmp_path, tied, heads):
  torch.manual_seed(0)
  model = transformers.ArceeForCausalLM(
    transformers.ArceeConfig(
      vocab_size=260,
      hidden_size=48,
      intermediate_size=40,
      num_hidden_layers=3,
      num_attention_heads=4,
      num_key_value_heads=heads,
      head_dim=16,
      max_position_embeddings=64,
      initializer_range=0.3,
      rope_parameters={'rope_type': 'default', 'rope_theta': 300.0},
      tie_word_embeddings=tied,
      bos_token_id=0,
      eos_token_id=None,
    )
  )
  model.save_pretrained(tmp_path / 'theirs', max_shard_size='50kB')
  assert len(list((tmp_path / 'theirs').glob('*.safetensors'))) > 1
  params, config = hugging_face.read(tmp_path / 'theirs')
  assert (config.norm_epsilon, config.rope_global) == (1e-5, 300.0)
  assert config.num_kv_heads == heads
  theirs = theirs_of(model)
  assert_close(ours_of(params, config), theirs)
  # And back again, to the same model.
  hugging_face.write(tmp_path / 'back', params, config)
  back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'back')
  assert_close(theirs_of(back), theirs)


def test_its_tokenizer_gives_our_tokens(tmp_path):
  hugging_face.write(tmp_path / 'out', toys.params_of(toys.PLAIN), toys.PLAIN)
  found = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  text = 'häß <s> Ā\n  日本'
  assert found(text).input_ids == [0, *text.encode()]
  assert found.decode(found(text).input_ids, skip_special_tokens=True) == text
  assert (found.bos_token_id, found.eos_token_id) == (0, None)


def test_speed_is_measured_with_both_caches(tmp_path):
  from kaiju_jax.experiments.benchmarks.parts import transformers_speed

  hugging_face.write(tmp_path / 'out', toys.params_of(toys.PLAIN), toys.PLAIN)
  model = transformers_speed.read(tmp_path / 'out', 'float32')
  for cache in transformers_speed.CACHES:
    prefill, step = transformers_speed.runner(model, 2, 9, cache, 3)()
    assert prefill > 0 and step > 0
  with pytest.raises(ValueError, match="cache='paged': must be one of dynamic"):
    transformers_speed.runner(model, 2, 9, 'paged', 3)
