"""What the slices of `benchmarks.device` compile, by slice and name.

A program is a function that returns a `jax.jit` and its arguments' shapes.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.device import decode
from experiments.benchmarks.device import needle
from experiments.benchmarks.device import order
from experiments.benchmarks.device import setting as setting_lib
from experiments.benchmarks.device import step
from kaiju_jax.decoding.device import decoder as decoder_lib
from kaiju_jax.experiments.benchmarks.parts import decode_speed
from kaiju_jax.kernels import ceilings
from kaiju_jax.model import transformer
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.training import state
from kaiju_jax.training import step as step_lib
from tests.device import numerics

SETTING = setting_lib.Setting('unused')
# Other libraries' contenders, but for cuDNN, and XLA's own programs.
_OTHERS = 'jax', 'torch', 'cudnn, mask', 'bf16', 's8', 'chunked'
Programs = dict[str, Callable[[], tuple[Any, Any]]]


def of(name: str, device: Any, beginnings: Sequence[str]) -> Programs:
  """Returns a slice's programs whose names have one of these beginnings."""
  if name in order.KERNELS:
    found = dict(_kernel(order.KERNELS[name][0], beginnings))
  else:
    found = {
      'ceilings': lambda: _ceilings(),
      'numerics': lambda: numerics.programs('gpu'),
      'step': lambda: _steps(device),
      'decode': lambda: dict(_decoding()),
      'needle': lambda: _needles(device),
    }[name]()
  return {
    label: make
    for label, make in found.items()
    if label.startswith(tuple(beginnings))
  }


def _ceilings() -> Programs:
  def program(jitted, make):
    return jitted, tuple(jax.eval_shape(make))

  made = ceilings.programs(size=8192, mebibytes=1024)
  return {name: functools.partial(program, *x) for name, x in made.items()}


def _kernel(kernel: str, beginnings) -> Iterator[tuple[str, Callable]]:
  bench = importlib.import_module(f'kaiju_jax.kernels.{kernel}.bench')
  for label, shape in bench.SHAPES.items():
    if not any(x.startswith(label) or label.startswith(x) for x in beginnings):
      continue  # Counting what a shape needs takes seconds.
    for subject in bench.subjects(label, shape):
      for name, contender in subject.contenders.items():
        if not name.startswith(_OTHERS):
          yield (
            f'{label}: {subject.kernel}, {name}',
            functools.partial(_contender, subject, contender),
          )


def _contender(subject, contender):
  return contender.run, jax.eval_shape(
    lambda: contender.operands(subject.make())
  )


def _training(experiment, device):
  mesh = mesh_lib.make(sharding_config.MeshConfig(), [device])
  return step_lib.make(experiment, mesh), step_lib.abstract(experiment, mesh)


def _steps(device) -> Programs:
  """Returns the step of each arm of each model, at the fewest rows."""
  return {
    name: lambda case=case: _training(step.experiment_of(case, False), device)
    for name, (_, case) in step.cases(SETTING).items()
    if case.rows < 32
  }


def _needles(device) -> Programs:
  return {
    arm: lambda arm=arm: _training(needle.experiment_of(arm, False), device)
    for arm in needle.cases(SETTING)
  }


def _decoding() -> Iterator[tuple[str, Callable]]:
  """Yields a step and a prefill call of each arm, of all layers and of four.

  Layers differ in their caches alone, so that four, which compile within
  seconds, hold what can fail.
  """
  for layers in 4, None:
    for arm in decode.ARMS:
      config, label = decode.config_of(arm, False), f'{arm}, all layers'
      if layers is not None:
        config = dataclasses.replace(config, layout='L0 L0 L2 G3')
        config.num_layers, label = layers, f'{arm}, {layers} layers'
      for tokens in 1, decode.CHUNK:
        for batch in 1, 64:
          yield (
            f'{label}, {batch} × {tokens}',
            functools.partial(_decoder, config, batch, tokens),
          )


def _decoder(config, batch, tokens):
  shapes = jax.eval_shape(
    lambda: state.draw_params(transformer.Transformer(config), 0)
  )
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  decoder = decoder_lib.Decoder(
    params, config, rows=batch, length=decode.LENGTH + decode.STEPS
  )
  call = functools.partial(decode_speed.greedy, decoder.network)
  arguments = (
    decoder.params,
    decoder.cache,
    decoder.account.rings(),
    np.zeros(batch, np.int32),
    np.zeros((batch, tokens), np.int32),
  )
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), arguments
  )
  return jax.jit(call, donate_argnums=1), abstract
