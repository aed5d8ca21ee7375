"""Finds settings of sampling methods that take equally many bytes per token.

For `experiments.distill`: the teacher's distributions of the first tokens
of the student's text are drawn and encoded by each method, with more and more
draws, until they take as many bytes as `systematic` does.
"""

from collections.abc import Callable

import jax
import numpy as np

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.distillation import record
from kaiju_jax.distillation import sample
from kaiju_jax.distillation import teach
from kaiju_jax.model import batches
from kaiju_jax.model import transformer
from kaiju_jax.runs import load
from kaiju_jax.tasks import texts
from kaiju_jax.training import experiment as experiment_lib

_TOKENS = 4 * record.TOKENS


def samplings(
  teacher: str, experiment: experiment_lib.Experiment, draws: int, entries: int
) -> dict[str, dict[str, int]]:
  """Returns {method: {setting: value}} for `experiments.teach`.

  Args:
    teacher: the workdir of the teacher.
    experiment: a student's, whose text is read.
    draws: of `systematic`, whose bytes are wanted.
    entries: the most entries of a token, of all methods but `full`.
  """
  logits_NV, number_N = _logits(teacher, experiment)
  draw = jax.jit(sample.draw, static_argnums=2)

  def size(method: str, **settings: int) -> float:
    sampling = distillation_config.Sampling(
      method, **{'entries': entries, **settings}
    )
    drawn = draw(logits_NV[None], number_N[None], sampling)
    weights = drawn.values_BLT if drawn.counts_BLT is None else drawn.counts_BLT
    targets = record.Targets(
      np.asarray(drawn.ids_BLT[0]), np.asarray(weights[0])
    )
    form = record.form_of(sampling, logits_NV.shape[-1])
    return record.bytes_per_token(targets, form)[1]

  wanted = size('systematic', draws=draws)
  found = {
    'full': {'entries': experiment.model.vocab_size},
    'systematic': {'draws': draws, 'entries': entries},
  }
  for method, name, least in (
    ('gumbel', 'draws', 12),
    ('multinomial', 'draws', 2),
    ('top_k', 'k', 1),
  ):
    value = _nearest(
      lambda n, method=method, name=name: size(method, **{name: n}),
      wanted,
      range(least, entries + 1),
    )
    found[method] = {name: value, 'entries': entries}
  return found


def _nearest(
  size: Callable[[int], float], wanted: float, choices: range
) -> int:
  """Returns the choice whose size is nearest; sizes rise with the choice."""
  low, high = choices[0], choices[-1]
  while high - low > 1:
    middle = (low + high) // 2
    if size(middle) <= wanted:
      low = middle
    else:
      high = middle
  return min((low, high), key=lambda n: abs(size(n) - wanted))


def _logits(
  path: str, experiment: experiment_lib.Experiment
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the teacher's logits of the first tokens, and their numbers."""
  teacher = load.from_workdir(path)
  data = experiment.data
  (source,) = texts.read(experiment)
  model = transformer.Transformer(teacher.config)
  variables = {'params': teacher.params}

  @jax.jit
  def logits(batch):
    hidden_BLD = batches.hidden(model, variables, batch)
    return model.apply(variables, hidden_BLD, method='logits')

  found, numbers, count = [], [], 0
  for windows in teach.read_batches(
    source.training, data.length, data.batch, 0.25
  ):
    is_new_BL = (windows.number_BL >= 0) & (windows.batch.weight_BL > 0)
    found.append(np.asarray(logits(windows.batch))[is_new_BL])
    numbers.append(windows.number_BL[is_new_BL])
    count += len(numbers[-1])
    if count >= _TOKENS:
      break
  logits_NV = np.concatenate(found)[:_TOKENS]
  return logits_NV, np.concatenate(numbers)[:_TOKENS].astype(np.uint32)
