"""Runs that train adapters (LoRA) beside a frozen base.

    begin_with    a workdir, an export or a Hugging Face folder: the base; or a
                  run with such adapters beside a base, from which both come
    base.json     in the run's workdir: the base's digest, which a resumed run
                  and a server compare

The step's state holds base and adapters (`model/lora.py`). The loop, and with
it a checkpoint, sees the adapters alone: `hide_base` puts the base in front of
each step and takes it away behind it.
"""

from collections.abc import Callable
import os
import pathlib
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.model import lora
from kaiju_jax.model import transformer
from kaiju_jax.objectives import objective as objective_lib
from kaiju_jax.runs import begin
from kaiju_jax.runs import load
from kaiju_jax.runs import same_model
from kaiju_jax.sharding import rules
from kaiju_jax.training import checkpoint
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.training import state as state_lib
from kaiju_jax.training import workdir as workdir_lib


def start(
  experiment: experiment_lib.Experiment,
  workdir: str | os.PathLike,
  mesh: jax.sharding.Mesh,
) -> state_lib.TrainState:
  """Returns the state before the first step, base and adapters on `mesh`.

  Raises:
    OSError, ValueError, checkpoint.RestoreError: the base cannot be read, has
      another tokenizer, or is not the one with which the workdir's run began;
      or `begin_with` is a run with other adapters.
  """
  before = experiment.begin_with
  found = load.base(workdir_lib.find_base(before), experiment.model.dtype)
  if found.tokenizer:
    begin.check_tokenizer(
      pathlib.Path(found.tokenizer), experiment.data.tokenizer
    )
  base = load.digest(found), found.origin
  same_model.check(workdir, *base, is_new=True)
  params = state_lib.attach(experiment, found.params)
  if workdir_lib.find_base(before) != before:
    same_model.check(before, *base, is_new=False)
    trained, frozen = lora.split(params)
    shapes = jax.eval_shape(lambda: trained)
    restored, _ = checkpoint.load(before, {'params': shapes})
    params = objective_lib.join(restored['params'], frozen)
  params = jax.device_put(params, rules.shardings(params, mesh))
  return state_lib.initialize(experiment, mesh, params=params)


class Hidden(NamedTuple):
  """The parts of a run whose state is without what a run reads again.

  Attributes:
    state: the state without the base, or without a teacher.
    step: (state, batch) → (state, metrics), on such states.
    evaluate: state → {name: value}, on such states; None for no evaluation.
  """

  state: Any
  step: Callable[..., Any]
  evaluate: Callable[[Any], Any] | None


def hide_base(
  state: state_lib.TrainState,
  step: Callable[..., Any],
  evaluate: Callable[[Any], Any] | None,
  split: Callable[[Any], tuple[Any, Any]],
) -> Hidden:
  """Returns a run's parts as the loop sees them.

  Args:
    state: the state with the base; its arrays belong to the result.
    step: takes and returns such states, and takes their arrays.
    evaluate: takes such states; None for no evaluation.
    split: returns the parameters that the loop sees, and the others.
  """
  seen, hidden = split(state.params)

  def whole(state):
    return state.replace(params=objective_lib.join(state.params, hidden))

  def of_seen(state, batch):
    nonlocal hidden
    state, metrics = step(whole(state), batch)
    seen, hidden = split(state.params)
    return state.replace(params=seen), metrics

  reading = None if evaluate is None else lambda state: evaluate(whole(state))
  return Hidden(state.replace(params=seen), of_seen, reading)


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses a run with adapters that cannot begin.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  if experiment.loop.branch:
    raise ValueError(
      f"loop.branch={experiment.loop.branch!r}: must be '' with lora.rank="
      f'{experiment.lora.rank}: adapters begin anew beside their base.'
    )
  state_lib.objective_of(experiment)
  shapes = transformer.parameter_shapes(experiment.model)
  lora.choose(shapes, experiment.lora.matrices)


def merge(found: load.Loaded) -> load.Loaded:
  """Returns a model whose adapters are added to its weights."""
  return found._replace(params=lora.merge(found.params, found.config))
