"""A model of another library teaches from its folder."""

import jax
import pytest

from kaiju_jax.distillation import config as config_lib
from kaiju_jax.runs import load
from kaiju_jax.runs import teach
from tests import toys
from tests.interchange import family_folders


def test_a_family_teaches_at_one_byte_per_weight(tmp_path):
  """Its store is written from codes, whose cost is measured."""
  fields = family_folders.fields_of('qwen3') | {'vocab_size': 256}
  folder = family_folders.write(tmp_path / 'qwen3', fields)
  teacher = teach.load_teacher(folder)
  floats = load.from_anywhere(folder)
  count = sum(leaf.size for leaf in jax.tree.leaves(floats.params))
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(teacher.params))
  # Scales are four bytes per channel, of 30 to 48 weights here.
  assert count < size < 1.25 * count
  experiment = toys.tiny_experiment(toys.write_texts(tmp_path))
  sampling = config_lib.Sampling(draws=8, entries=8)
  plan = teach.plan(teacher, experiment, sampling)
  divergence, tokens = teach.compare(plan, floats)
  assert tokens == 32 and 1e-7 < divergence < 0.05
  same = teach.compare(plan._replace(teacher=floats), floats)
  assert same == (0.0, 32)
  manifest = teach.teach(plan, tmp_path / 'store')
  (taught,) = manifest.corpora.values()
  assert taught.end == len(plan.corpora['text'].tokens)
  # The student's tokenizer is another: refused by its name.
  experiment.data.tokenizer = toys.write_tokenizer(tmp_path)
  with pytest.raises(ValueError, match=r"data\.tokenizer='.*must be that of"):
    teach.plan(teacher, experiment, sampling)
