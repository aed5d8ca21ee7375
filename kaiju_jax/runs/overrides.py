"""Refuses a --config.FIELD=VALUE that has no effect, by a table of fields.

A field may be replaced by another one (`loop.steps` by `loop.tokens`), or
configure a part that another field turns off (`lora.alpha` with `lora.rank=0`).
A config may hold such values, most of them defaults; a typed one is an error.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import fnmatch
import itertools
import operator
from typing import Any
from typing import NamedTuple

from absl import flags

from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.runs import own_parts
from kaiju_jax.storage import parts
from kaiju_jax.storage import strict
from kaiju_jax.training import experiment as experiment_lib

Condition = Callable[[experiment_lib.Experiment], bool]


class Rule(NamedTuple):
  """Fields that have no effect while a condition holds."""

  fields: tuple[str, ...]  # Dotted names with * and ?.
  # Dotted names of the fields that the condition reads.
  rulers: tuple[str, ...]
  holds: Condition  # The condition, of the experiment with all overrides.


def _rule(fields: str, rulers: str, holds: Condition) -> Rule:
  return Rule(tuple(fields.split()), tuple(rulers.split()), holds)


def _unless(fields: str, ruler: str, *wanted: Any) -> Rule:
  """Returns the rule of fields that only some values of the ruler use."""
  value = operator.attrgetter(ruler)
  return _rule(fields, ruler, lambda one: value(one) not in wanted)


def _has(field: str) -> Condition:
  value = operator.attrgetter(field)
  return lambda one: bool(value(one))


def _lacks(*fields: str) -> Condition:
  values = [operator.attrgetter(field) for field in fields]
  return lambda one: not any(value(one) for value in values)


def _shares_alike(name: str) -> Condition:
  """Returns the condition that no layer could share, whatever the field."""

  def holds(one: experiment_lib.Experiment) -> bool:
    model = one.model
    arguments = {
      'num_layers': model.num_layers,
      'window': 1,
      'period': model.period,
      'local_share': 1,
      'global_share': 1,
    }
    try:
      alone, most = (
        layers_lib.kaiju_layers(**arguments | {name: share})
        for share in (1, layers_lib.MOST)
      )
    except ValueError:
      return False
    return alone == most

  return holds


def _layers(fields: str, is_kind: Callable[..., bool]) -> tuple[Rule, ...]:
  """Returns the rules of fields that some kind of layer alone uses.

  Args:
    fields: as in `_rule`.
    is_kind: takes a layer's index and the layer.
  """

  def holds(one: experiment_lib.Experiment) -> bool:
    try:
      layers = one.model.layers()
    except ValueError:
      return False  # `model_config.check` says what is wrong.
    return not any(is_kind(*pair) for pair in enumerate(layers))

  return (
    _rule(fields, 'model.layout', lambda x: bool(x.model.layout) and holds(x)),
    _rule(fields, _STACK, holds),
  )


def _is_local(_, layer: layers_lib.Layer) -> bool:
  return layer.window is not None


def _reads(fields: str, *tasks: str) -> Rule:
  """Returns the rule of fields that some of our tasks read, and others' may."""
  return _rule(
    fields,
    'data.task',
    lambda one: not (_is_own(one) or one.data.task in tasks),
  )


def _is_own(one: experiment_lib.Experiment) -> bool:
  return parts.find('TASKS', one.data.task) is not None


def _freezes(one: experiment_lib.Experiment) -> bool:
  return one.objective.name == 'token_head' and one.objective.token_head.frozen


def _holds_none_out(one: experiment_lib.Experiment) -> bool:
  return one.data.task in _TEXTS and not one.data.held_out


_STACK = 'model.num_layers model.period'
_TEXTS = 'text', 'properties', 'spans', 'conversations', 'choices'
_SCALING, _INT8 = 'model.rope_scaling', 'model.quantization'
_OBJECTIVES = (
  *('token_head', 'distillation', 'attention_alignment', 'preference'),
)
_OF_BASE = ' '.join(
  f'model.{field.name} model.{field.name}.*'
  for field in dataclasses.fields(model_config.ModelConfig)
  if field.name not in model_config.COMPUTED
)

# The ruler's value is used instead of the field's.
REPLACED = (
  _rule('loop.steps', 'loop.tokens', _has('loop.tokens')),
  _rule('begin_with', 'loop.branch', _has('loop.branch')),
  _rule(
    'init',
    'loop.branch',
    lambda one: bool(one.loop.branch) and one.init != 'standard',
  ),
  _rule(
    f'{_STACK} model.local_share model.global_share model.sinks'
    ' model.sink_logit',
    'model.layout',
    _has('model.layout'),
  ),
  _rule(_OF_BASE, 'lora.rank begin_with', _has('lora.rank')),
  _rule('data.path', 'data.sources', _has('data.sources')),
  _rule('data.path', 'data.mix', _has('data.mix')),
)

# The ruler turns off what the field configures.
UNUSED = (
  *_layers('model.window model.rope_local', _is_local),
  # A layout replaces them in any case.
  _layers('model.sinks model.sink_logit', _is_local)[1],
  *_layers(
    'model.rope_global', lambda _, layer: layer.window is None and layer.turned
  ),
  _rule(
    'model.window',
    'model.layout',
    lambda one: (
      bool(one.model.layout)
      and all(
        ':' in word for word in one.model.layout.split() if word[0] == 'L'
      )
    ),
  ),
  *_layers('model.shared', lambda index, layer: layer.kv_from != index),
  _rule('model.local_share', _STACK, _shares_alike('local_share')),
  _rule('model.global_share', _STACK, _shares_alike('global_share')),
  _unless(
    f'{_SCALING}.factor {_SCALING}.layers',
    f'{_SCALING}.kind',
    *('linear', 'llama3', 'yarn'),
  ),
  _unless(f'{_SCALING}.original_length', f'{_SCALING}.kind', 'llama3', 'yarn'),
  _unless(f'{_SCALING}.low {_SCALING}.high', f'{_SCALING}.kind', 'llama3'),
  _unless(
    f'{_SCALING}.fast {_SCALING}.slow {_SCALING}.attention_factor',
    f'{_SCALING}.kind',
    'yarn',
  ),
  _unless(f'{_INT8}.kv_scale', f'{_INT8}.kv', 'int8'),
  _rule(
    f'{_INT8}.matmul_implementation {_INT8}.input_gradient',
    f'{_INT8}.matmul {_INT8}.embedding',
    lambda one: (
      one.model.quantization.matmul
      == one.model.quantization.embedding
      == 'none'
    ),
  ),
  _unless(
    f'{_INT8}.clamp_hidden_k',
    f'{_INT8}.clamp_hidden',
    *('weight_rms', 'input_std'),
  ),
  _unless(f'{_INT8}.clamp_input_k', f'{_INT8}.clamp_input', 'input_std'),
  _unless(f'{_INT8}.ternary.*', f'{_INT8}.wire_weights', 'ternary'),
  _unless(
    f'{_INT8}.wire_header',
    f'{_INT8}.wire_gradients',
    *('squinch', 'squinch_floor', 'squinch_fitted'),
  ),
  *(_unless(f'objective.{x}.*', 'objective.name', x) for x in _OBJECTIVES),
  _rule(
    'objective.token_head.coefficient optimizer.z_reg.* objective.chunk',
    'objective.token_head.frozen',
    _freezes,
  ),
  _rule(
    'objective.chunk optimizer.z_reg.logits',
    'objective.name',
    lambda one: one.objective.name == 'attention_alignment',
  ),
  _rule(
    'parts.*',
    ' '.join(dict.fromkeys(parts.FIELDS.values())),
    lambda one: not own_parts.find_used(one),
  ),
  _unless('optimizer.decay', 'optimizer.schedule', 'wsd'),
  _unless('optimizer.final', 'optimizer.schedule', 'cosine', 'wsd'),
  _rule(
    'optimizer.final',
    'optimizer.decay',
    lambda one: one.optimizer.schedule == 'wsd' and not one.optimizer.decay,
  ),
  _rule('optimizer.batch_rate', 'optimizer.batch', _lacks('optimizer.batch')),
  _unless('optimizer.transfer_base', 'optimizer.transfer', 'width'),
  _rule('optimizer.bungee_rate', 'lora.rank', _has('lora.rank')),
  _rule('optimizer.bungee_rate', f'{_INT8}.bungee', _lacks(f'{_INT8}.bungee')),
  _rule(
    'optimizer.z_reg.target',
    'optimizer.z_reg.attention',
    _lacks('optimizer.z_reg.attention'),
  ),
  _rule(
    'optimizer.z_reg.schedule',
    'optimizer.z_reg.attention optimizer.z_reg.logits',
    _lacks('optimizer.z_reg.attention', 'optimizer.z_reg.logits'),
  ),
  _rule('lora.alpha lora.matrices', 'lora.rank', _lacks('lora.rank')),
  _reads('data.path', *_TEXTS, 'needle_text'),
  _reads('data.mix data.anneal_at data.anneal_over data.mix_block', 'text'),
  _rule(
    'data.anneal_at data.anneal_over data.mix_block',
    'data.sources data.mix',
    _lacks('data.sources', 'data.mix'),
  ),
  _rule(
    'data.anneal_over', 'data.anneal_at', lambda one: one.data.anneal_at == 1
  ),
  _unless('data.teacher', 'objective.name', 'distillation'),
  _reads('data.tokenizer', *_TEXTS, 'dialogues'),
  _reads('data.chat_template', 'spans', 'conversations', 'choices'),
  _reads('data.end_weight', 'conversations'),
  _reads('data.label_weights data.span_tokens', 'spans'),
  _reads('data.reference', 'choices'),
  _reads('data.held_out', *_TEXTS, 'needle_text'),
  _reads('data.evaluated_rows', *_TEXTS),
  _reads('data.curriculum', 'needle', 'recall'),
  _rule('data.evaluated_rows', 'data.held_out', _holds_none_out),
  _rule(
    'loop.evaluate_every',
    'data.task',
    lambda one: (
      one.loop.evaluate_every > 0
      and one.data.task not in (*_TEXTS, 'needle')
      and not _is_own(one)
    ),
  ),
  _rule(
    'loop.evaluate_every',
    'data.held_out',
    lambda one: one.loop.evaluate_every > 0 and _holds_none_out(one),
  ),
)


def check(
  experiment: experiment_lib.Experiment, values: Mapping[str, Any]
) -> None:
  """Refuses overrides that have no effect.

  Args:
    experiment: the experiment, overrides applied.
    values: {dotted name: value}, the overrides.

  Raises:
    ValueError: names the override and what rules it.
  """
  for _, message in find_ruled(experiment, values):
    raise ValueError(message)


def check_arms(
  experiments: Mapping[str, experiment_lib.Experiment],
  values: Mapping[str, Any],
) -> None:
  """Refuses overrides of several arms, and arms that are the same experiment.

  An override that some arm has no use for is accepted if another one has. One
  that another field of an arm replaces is not, because the arms would differ in
  more than they are named for.

  Args:
    experiments: {arm: its experiment, overrides applied}.
    values: {dotted name: value}, the overrides.

  Raises:
    ValueError: names the override, the arm and what rules it; or two arms.
  """
  found = {arm: dict(find_ruled(x, values)) for arm, x in experiments.items()}
  for arm, messages in found.items():
    for name, message in messages.items():
      is_replaced = any(
        find_ruled(experiments[arm], {name: values[name]}, REPLACED)
      )
      if is_replaced or all(name in other for other in found.values()):
        raise ValueError(f'arm {arm!r}: {message}')
  for (one, ours), (other, theirs) in itertools.combinations(
    experiments.items(), 2
  ):
    apart = strict.differences(strict.dump(ours), strict.dump(theirs))
    if all(_find(ours, x) and _find(theirs, x) for x in apart):
      typed = ' '.join(f'--config.{x}={value}' for x, value in values.items())
      raise ValueError(
        f'arms {one!r} and {other!r} are the same experiment'
        f'{typed and f" with {typed}"}: no field that has an effect differs.'
      )


def find_ruled(
  experiment: experiment_lib.Experiment,
  values: Mapping[str, Any],
  rules: tuple[Rule, ...] = REPLACED + UNUSED,
) -> Iterator[tuple[str, str]]:
  """Yields (dotted name, message) of each override that has no effect.

  An empty string configures nothing, so that it is never one.
  """
  for name, value in values.items():
    rule = _find(experiment, name, rules) if value != '' else None
    if rule is not None:
      by = ' and '.join(
        f'{ruler}={operator.attrgetter(ruler)(experiment)!r}'
        for ruler in rule.rulers
      )
      yield (
        name,
        f'--config.{name}={value}: has no effect with {by}. Change'
        f' {" or ".join(rule.rulers)}, or leave out --config.{name}.',
      )


def _find(
  experiment: experiment_lib.Experiment,
  name: str,
  rules: tuple[Rule, ...] = REPLACED + UNUSED,
) -> Rule | None:
  for rule in rules:
    matches = any(fnmatch.fnmatchcase(name, x) for x in rule.fields)
    if matches and rule.holds(experiment):
      return rule
  return None


def read_flags() -> dict[str, Any]:
  """Returns {dotted name: value}, the overrides that the command line has."""
  if 'config' not in flags.FLAGS:
    return {}
  flag = flags.FLAGS['config']
  is_read = isinstance(flag.value, experiment_lib.Experiment)
  return dict(flag.override_values) if is_read else {}


def refuse(fields: Mapping[str, str]) -> None:
  """Refuses overrides of fields that a command's own flags determine.

  Args:
    fields: {dotted name: the flag}.

  Raises:
    ValueError: names the override and the flag.
  """
  for name, value in read_flags().items():
    if name in fields:
      raise ValueError(
        f'--config.{name}={value}: has no effect; {fields[name]} determines it.'
      )
