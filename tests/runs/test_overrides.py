"""A typed field without effect is refused by its name and by its ruler's."""

import copy
import importlib
import operator
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.experiments import configs
from kaiju_jax.experiments.studies.ablation import ablate
from kaiju_jax.experiments.studies.ablation import cells
from kaiju_jax.model import config as model_config
from kaiju_jax.model import rotary
from kaiju_jax.model import transformer
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.runs import overrides
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import longer
from tests import toys

# What the fields are drawn from that some rule or some oracle reads.
VALUES = {
  'loop.steps': (1, 40, 41),
  'loop.tokens': (0, 5120, 51200),
  'loop.branch': ('', 'runs/a@3'),
  'loop.evaluate_every': (0, 5),
  'model.num_layers': (1, 2, 7, 14),
  'model.period': (0, 1, 2, 4, 7),
  'model.local_share': (1, 2, 3),
  'model.global_share': (1, 2, 5),
  'model.window': (8, 16),
  'model.sinks': (0, 4),
  'model.sink_logit': (False, True),
  'model.layout': (
    *('', '', 'L0 L0 G2', 'G0 G1', 'L0 N1', 'L0 L1'),
    *('', 'L0:8+4 L1:9s', 'L0:8 L1s'),
  ),
  'model.shared': ('both', 'keys'),
  'model.rope_local': (1e4, 500.0),
  'model.rope_global': (1e4, 500.0),
  'model.rope_scaling.kind': ('none', 'linear', 'llama3', 'yarn'),
  'model.rope_scaling.factor': (2.0, 4.0),
  'model.rope_scaling.original_length': (64, 128),
  'model.rope_scaling.low': (1.0, 2.0),
  'model.rope_scaling.high': (4.0, 8.0),
  'model.rope_scaling.fast': (32.0, 16.0),
  'model.rope_scaling.slow': (1.0, 2.0),
  'model.rope_scaling.layers': ('all', 'global'),
  'model.quantization.matmul': ('int8', 'none'),
  'model.quantization.embedding': ('int8', 'none'),
  'model.quantization.kv': ('int8', 'none'),
  'model.quantization.clamp_hidden': ('weight_rms', 'input_std', 'none'),
  'model.quantization.clamp_input': ('input_std', 'none'),
  'model.quantization.wire_weights': ('int8', 'float', 'ternary'),
  'model.quantization.wire_gradients': ('squinch', 'squinch_floor', 'int4'),
  'model.quantization.bungee': (False, True),
  'objective.name': (
    *('language', 'distillation', 'attention_alignment'),
    *('preference', 'token_head'),
  ),
  'objective.token_head.frozen': (False, True),
  'optimizer.schedule': ('cosine', 'wsd', 'constant'),
  'optimizer.warmup': (0.0, 0.1),
  'optimizer.decay': (0.0, 0.2, 0.5),
  'optimizer.final': (0.05, 0.5),
  'optimizer.batch': ('', '0:1'),
  'optimizer.transfer': ('none', 'width'),
  'optimizer.z_reg.attention': (0.0, 1e-3),
  'optimizer.z_reg.logits': (0.0, 1e-4),
  'lora.rank': (0, 0, 4),
  'begin_with': ('', 'runs/b'),
  'data.task': (
    *('text', 'properties', 'spans', 'conversations', 'choices'),
    *('dialogues', 'needle', 'needle_text', 'recall'),
  ),
  'data.mix': ('', 'mix.json'),
  'data.anneal_at': (1.0, 0.5),
  'data.held_out': (0.0, 0.1),
}


def draw(rng):
  drawn = {name: x[rng.integers(len(x))] for name, x in VALUES.items()}
  return toys.change(experiment_lib.Experiment(init='induction'), drawn)


def rates(experiment):
  return [
    longer.share_of_peak(experiment.optimizer, 1000, tokens)
    for tokens in range(0, 1001, 25)
  ]


def angles(experiment):
  """The rotary tables of the kinds of layers that are turned."""
  kinds = {one.kind for one in experiment.model.layers() if one.turned}
  scaling = rotary.scaling_of
  return {
    kind: [
      getattr(experiment.model, f'rope_{kind}'),
      *(x.tolist() for x in rotary.table(40, 16, 1e4, scaling(own, kind))),
    ]
    for kind in kinds
    for own in [experiment.model.rope_scaling]
  }


# {field: what it must change, unless it has no effect}.
ORACLES = {
  'loop.steps': lambda one: batch_schedule.schedule_of(one).steps,
  **dict.fromkeys(
    (
      *('model.num_layers', 'model.local_share', 'model.global_share'),
      *('model.window', 'model.sinks', 'model.sink_logit'),
    ),
    lambda one: one.model.layers(),
  ),
  'optimizer.decay': rates,
  'optimizer.final': rates,
  **{name: angles for name in VALUES if name.startswith('model.rope_')},
}
del ORACLES['model.rope_scaling.kind']


@pytest.mark.parametrize('seed', range(4))
def test_a_field_is_refused_if_and_only_if_no_value_of_it_matters(seed):
  rng = np.random.default_rng(seed)
  met = set()
  for _ in range(40):
    experiment = draw(rng)
    experiment.lora.rank, experiment.begin_with = 0, ''
    for name, oracle in ORACLES.items():
      found = []
      for value in VALUES[name]:
        other = toys.change(copy.deepcopy(experiment), {name: value})
        found.append(oracle(other))
      has_effect = any(one != found[0] for one in found)
      value = operator.attrgetter(name)(experiment)
      refused = list(overrides.find_ruled(experiment, {name: value}))
      # A scaling of other layers than the model has is not in the table.
      if name.startswith('model.rope_scaling') and refused == []:
        continue
      assert bool(refused) != has_effect, (name, experiment)
      met.add((name, has_effect))
  assert {name for name, _ in met} == ORACLES.keys()


def test_every_rule_refuses_by_both_names():
  rng = np.random.default_rng(0)
  left = {id(rule): rule for rule in overrides.REPLACED + overrides.UNUSED}
  # A flag cannot hold sources.
  left = {
    key: one for key, one in left.items() if one.rulers != ('data.sources',)
  }
  for _ in range(4000):
    experiment = draw(rng)
    for key, rule in list(left.items()):
      if not rule.holds(experiment):
        continue
      for field in rule.fields:
        if '*' in field:
          field = field.replace('*', 'entries')
        try:
          overrides.check(experiment, {field: 3})
        except ValueError as error:
          found = str(error)
        assert f'--config.{field}=3: has no effect with' in found
      first = next(
        one
        for one in overrides.REPLACED + overrides.UNUSED
        if set(one.fields) & set(rule.fields) and one.holds(experiment)
      )
      if first is rule:
        del left[key]
    if not left:
      return
  raise AssertionError(list(left.values()))


def traced(model):
  """The text of a model's loss and gradients, constants included."""
  module = transformer.Transformer(model)
  tokens_BL = jnp.zeros((1, 8), jnp.int32)
  seen = visibility.causal(8)
  params = jax.eval_shape(module.init, jax.random.key(0), tokens_BL, seen)

  def loss(params):
    return jnp.sum(module.apply(params, tokens_BL, seen).astype(jnp.float32))

  return str(jax.make_jaxpr(jax.grad(loss, allow_int=True))(params))


QUANTIZED = [
  ('kv_scale', 'kv', 'none', 'channel'),
  ('clamp_hidden_k', 'clamp_hidden', 'none', 3.0),
  ('clamp_input_k', 'clamp_input', 'none', 3.0),
  ('input_gradient', 'matmul', 'none', 'int8'),
  ('matmul_implementation', 'matmul', 'none', 'reference'),
]


@pytest.mark.slow
@pytest.mark.parametrize('field, ruler, off, value', QUANTIZED)
def test_what_is_refused_of_int8_changes_no_operation(field, ruler, off, value):
  programs = []
  for is_off in True, False:
    for changes in {}, {field: value}:
      settings = quantization_config.QuantizationConfig(**changes)
      if is_off:
        setattr(settings, ruler, off)
        settings.qk = 'none'
      model = model_config.ModelConfig(
        d_model=16, num_heads=1, head_dim=8, d_ff=16, layout='L0 G1',
        quantization=settings, max_length=8,
      )  # fmt: skip
      experiment = experiment_lib.Experiment(model=model)
      name = f'model.quantization.{field}'
      assert (
        bool(list(overrides.find_ruled(experiment, {name: value}))) == is_off
      )
      programs.append(traced(model))
  assert programs[0] == programs[1] and programs[2] != programs[3]


CONFIG = """
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('plain', 'counted', 'wide', 'wsd', 'short')

def get_config(arm='plain'):
  experiment = experiment_lib.Experiment()
  experiment.data.length = 32
  experiment.loop.log_every = 1
  if arm == 'counted':
    experiment.loop.tokens = 5120
  if arm == 'wide':
    experiment.model.layout = 'L0 L1'
  if arm == 'short':
    experiment.loop.steps = 9
  if arm == 'wsd':
    experiment.optimizer.schedule = 'wsd'
  return experiment
"""


@pytest.mark.parametrize(
  'arms, override, message',
  [
    (
      'plain counted',
      'loop.steps=7',
      r"arm 'counted': --config\.loop\.steps=7: .* loop\.tokens=5120",
    ),
    (
      'plain wide',
      'model.num_layers=9',
      r"arm 'wide': .*model\.layout='L0 L1'",
    ),
    ('plain wsd', 'optimizer.decay=0.1', ''),
    ('plain counted', 'optimizer.decay=0.1', r"optimizer\.schedule='cosine'"),
    ('plain wsd', 'loop.evaluate_every=0', ''),
    ('plain wide', 'model.layout=L0', "'plain' and 'wide' are the same"),
    ('plain wsd', 'optimizer.schedule=wsd', "'plain' and 'wsd' are the same"),
    ('plain wsd', 'optimizer.schedule=constant', 'are the same'),
    ('plain counted', 'loop.tokens=2560', 'are the same'),
    # They differ in a field that has no effect in either.
    ('plain short', 'loop.tokens=2560', 'are the same'),
    ('plain short', 'loop.log_every=2', ''),
  ],
)
def test_overrides_of_arms(tmp_path, arms, override, message):
  (tmp_path / 'arms.py').write_text(CONFIG)
  arguments = (
    cells.cross(str(tmp_path / 'arms.py'), dict.fromkeys(arms.split(), ''), {}),
    *((0, 1), tmp_path / 'out', [f'--config.{override}']),
  )
  if not message:
    assert len(ablate.commands(*arguments)) == 4
    return
  with pytest.raises(ValueError, match=message):
    ablate.commands(*arguments)
  assert not (tmp_path / 'out').exists()


def test_no_two_arms_of_our_configs_are_the_same_experiment():
  folder = pathlib.Path(configs.__file__).parent
  for path in sorted(folder.glob('[a-z]*.py')):
    module = importlib.import_module(f'{configs.__name__}.{path.stem}')
    arms = getattr(module, 'ARMS', ())
    overrides.check_arms({arm: module.get_config(arm) for arm in arms}, {})
