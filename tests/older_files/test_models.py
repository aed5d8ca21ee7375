"""Exports, starts and folders of older code hold the same models."""

import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.distillation import store
from kaiju_jax.model import transformer
from kaiju_jax.runs import load
from kaiju_jax.runs import reference
from kaiju_jax.runs import teach
from kaiju_jax.runs import train
from kaiju_jax.training import workdir

TOKENS_BL = np.arange(40, 72, dtype=np.int32)[None]
MODELS = (
  *('exports/arcee', 'exports/calibrated', 'exports/chat', 'exports/codes'),
  *('exports/float', 'exports/imported_codes', 'exports/per_tensor'),
  *('runs/chat', 'runs/float', 'runs/int8', 'runs/lora', 'runs/ternary'),
  *('starts/fitted', 'starts/mean'),
)
QUICK = 'exports/codes', 'starts/mean'


def read(path):
  if path == 'runs/lora':
    return load.attach_adapters(path)
  return load.from_anywhere(path)


def models(quick):
  """Returns the parameters of a test of each model."""
  return pytest.mark.parametrize(
    'path',
    [
      pytest.param(one, marks=[] if one in quick else pytest.mark.slow)
      for one in MODELS
    ],
  )


@models({*QUICK, 'exports/calibrated', 'exports/imported_codes', 'runs/float'})
def test_weights_are_the_same_bits(path, here, expected):
  assert load.digest(read(path)) == expected['digests'][path]


@models(QUICK)
def test_logits_are_the_same(path, here, expected):
  found = read(path)
  model = transformer.Transformer(found.config)
  seen = visibility.causal(TOKENS_BL.shape[1])
  logits = model.apply(load.variables(found), TOKENS_BL, seen)
  tolerance = {'rtol': 1e-2, 'atol': 2e-2}
  if found.config.quantization.matmul == 'none':
    tolerance = {'rtol': 1e-5, 'atol': 1e-5}
  np.testing.assert_allclose(
    np.asarray(logits)[0, -1, :8], expected['logits'][path], **tolerance
  )


def test_a_teachers_targets_are_not_written_again(here):
  """The same command finds that all is done: nothing compiles."""
  teacher = load.from_anywhere('runs/plain')
  student = workdir.load_experiment('runs/student')
  train.check(student)
  settings = store.read_manifest('targets').settings
  before = sorted(here.glob('targets/*.array_record'))
  times = [one.stat().st_mtime_ns for one in before]
  plan = teach.plan(teacher, student, settings.sampling, shard=settings.shard)
  assert plan.settings == settings
  teach.teach(plan, 'targets')
  after = sorted(here.glob('targets/*.array_record'))
  assert after == before
  assert [one.stat().st_mtime_ns for one in after] == times


def test_a_references_numbers_are_kept(here):
  found = load.from_anywhere('exports/chat')
  counts = reference.write(found, 'swipes.jsonl', 'reference.npz', 96)
  assert counts == (12, 0)
