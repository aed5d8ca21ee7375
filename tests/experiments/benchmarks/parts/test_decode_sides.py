"""A GGUF file's other sides: the same weights in Q8_0, and what is refused."""

import dataclasses

import gguf
import numpy as np
import pytest

from kaiju_jax.experiments.benchmarks.load_test import llama_serving
from kaiju_jax.experiments.benchmarks.parts import settings as settings_lib
from tests.interchange import gguf_files


def test_a_file_in_q8_0_has_the_same_fields_and_nearly_the_weights(tmp_path):
  rng = np.random.default_rng(0)
  matrix = rng.standard_normal((4, 64)).astype(np.float32)
  vector = rng.standard_normal(64).astype(np.float32)
  kind = gguf.GGMLQuantizationType.Q4_1
  coded = gguf.quantize(matrix, kind)
  gguf_files.write(
    tmp_path / 'a.gguf',
    'llama',
    {'llama.rope': 1e5, 'tokens': ['<a>', 'é'], 'bos': True},
    {'attn_q.weight': (coded, kind), 'norm.weight': vector},
  )
  llama_serving.recode(tmp_path / 'b.gguf', tmp_path / 'a.gguf')
  first, second = (gguf.GGUFReader(tmp_path / f'{name}.gguf') for name in 'ab')
  fields = [
    {name: field.contents() for name, field in each.fields.items()}
    for each in (first, second)
  ]
  assert fields[0] == fields[1]
  assert fields[1]['tokens'] == ['<a>', 'é']
  tensors = {tensor.name: tensor for tensor in second.tensors}
  np.testing.assert_array_equal(tensors['norm.weight'].data, vector)
  found = tensors['attn_q.weight']
  assert found.tensor_type.name == 'Q8_0'
  wanted = gguf.dequantize(coded, kind)
  np.testing.assert_allclose(
    gguf.dequantize(found.data, found.tensor_type), wanted, atol=0.02
  )


@pytest.mark.parametrize(
  ('changes', 'named'),
  (
    ({'model': 'a.gguf'}, '--parts=speed,quality'),
    ({'http': True, 'parts': ('speed',)}, '--http'),
    (
      {'http': True, 'clock': 'processor', 'model': 'a', 'parts': ('speed',)},
      '--http',
    ),
    ({'peers': ('float16',)}, 'float16'),
  ),
)
def test_what_cannot_be_compared_is_named(changes, named):
  settings = settings_lib.DecodeSettings()
  settings.check()
  with pytest.raises(ValueError, match=named):
    dataclasses.replace(settings, **changes).check()
