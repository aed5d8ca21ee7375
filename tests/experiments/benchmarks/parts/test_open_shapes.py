"""The folders of the benchmark are those of the shapes that it names."""

import pytest

from kaiju_jax.costs import footprint
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.interchange import hugging_face
from kaiju_jax.interchange.families import registry
from kaiju_jax.runs import load

COUNTS = {'smollm2-135m': 134_515_008, 'qwen3-0.6b': 596_049_920}


@pytest.mark.parametrize('name', open_shapes.SHAPES)
def test_a_shape_has_its_model_s_parameters(name):
  fields = open_shapes.SHAPES[name] | {'tie_word_embeddings': True}
  config = registry.read(fields | {'hidden_act': 'silu'}).config
  assert footprint.count(footprint.parameters(config)) == COUNTS[name]


@pytest.mark.parametrize('name', open_shapes.SHAPES)
def test_a_folder_of_a_shape_is_read(name, tmp_path):
  small = {
    'vocab_size': 90,
    'hidden_size': 32,
    'num_hidden_layers': 1,
    'intermediate_size': 40,
  }
  open_shapes.write(tmp_path, open_shapes.SHAPES[name] | small)
  loaded = load.from_anywhere(tmp_path)
  assert loaded.config.tied_embedding
  assert hugging_face.read_config(tmp_path).dtype == 'bfloat16'
  assert (loaded.config.qk_norm == 'head') == (name == 'qwen3-0.6b')
