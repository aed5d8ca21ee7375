"""transformers computes our logits from our folders, and we from its own.

Needs the extra `interchange`; `make interchange` runs it.
"""

import jax
import numpy as np
import pytest

from kaiju_jax.decoding.requests import penalties
from kaiju_jax.decoding.requests import sampling
from kaiju_jax.interchange import hugging_face
from tests.interchange import toys

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOKENS = np.random.default_rng(3).integers(0, 260, (2, 64), dtype=np.int32)


def theirs_of(model):
  with torch.inference_mode():
    return model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


def assert_close(one, other):
  assert np.ptp(other) > 0.1
  np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(
  'config', toys.EXPRESSIBLE.values(), ids=toys.EXPRESSIBLE
)
def test_transformers_computes_our_logits(tmp_path, config):
  params = toys.params_of(config)
  hugging_face.write(tmp_path / 'out', params, config)
  model, report = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / 'out', output_loading_info=True
  )
  assert type(model).__name__ == 'ArceeForCausalLM'
  assert not any(report.values())
  assert_close(toys.logits(params, config, TOKENS), theirs_of(model))


def test_its_tokenizer_gives_our_tokens(tmp_path):
  hugging_face.write(tmp_path / 'out', toys.params_of(toys.PLAIN), toys.PLAIN)
  found = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  text = 'häß <s> Ā\n  日本'
  assert found(text).input_ids == [0, *text.encode()]
  assert found.decode(found(text).input_ids, skip_special_tokens=True) == text
  assert (found.bos_token_id, found.eos_token_id) == (0, None)


def test_speed_is_measured_with_both_caches(tmp_path):
  from kaiju_jax.experiments.benchmarks.load_test import transformers_serving

  hugging_face.write(tmp_path / 'out', toys.params_of(toys.PLAIN), toys.PLAIN)
  model = transformers_serving.model(tmp_path / 'out', 'float32')
  for cache in transformers_serving.CACHES:
    prefill, step = transformers_serving.runner(model, 2, 9, cache, 3)()
    assert prefill > 0 and step > 0
  with pytest.raises(ValueError, match="cache='paged': must be one of dynamic"):
    transformers_serving.runner(model, 2, 9, 'paged', 3)


@pytest.mark.parametrize('penalty, min_p', [(1.3, 0.05), (0.7, 0.3)])
def test_penalty_and_min_p_are_its_own(penalty, min_p):
  logits_BV = np.random.default_rng(4).normal(0, 4, (2, 260))
  logits_BV = torch.tensor(logits_BV, dtype=torch.float32)
  process = transformers.generation.logits_process
  penalize = process.RepetitionPenaltyLogitsProcessor(penalty)
  wanted_BV = penalize(torch.tensor(TOKENS, dtype=torch.long), logits_BV)
  kept_BV = process.MinPLogitsWarper(min_p)(None, wanted_BV).isfinite()
  settings = sampling.settings(
    [sampling.Sampling(repetition_penalty=penalty, min_p=min_p)] * 2
  )
  logits = logits_BV.numpy()
  rows = [penalties.read(row_L, 64, [], 260) for row_L in TOKENS]
  texts = jax.tree.map(lambda *x: np.stack(x), *rows)
  found_BV = jax.jit(penalties.apply)(logits, settings, texts, np.arange(2))
  np.testing.assert_allclose(found_BV, wanted_BV, rtol=1e-6)
  depth_BV = sampling._depth(found_BV, settings)
  limit_B1 = sampling._limit(depth_BV, settings, None)[:, None]
  np.testing.assert_array_equal(depth_BV <= limit_B1, kept_BV)
