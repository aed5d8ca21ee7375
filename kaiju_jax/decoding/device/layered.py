"""A call of the model in programs of one layer each, for deep models on a CPU.

XLA's CPU compiles and loads each layer of a program anew, though all are equal.
So a call is a program that embeds the tokens, one that runs a layer, called for
each layer in turn, and one that keeps what the layers made and does the rest.
Layers of one kind share theirs. Each call of a program costs some 40 µs.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.kernels import dispatch
from kaiju_jax.model import block
from kaiju_jax.model import config as model_config
from kaiju_jax.model import past

_BLOCKS = 'blocks'
# Layers from which each is a program of its own on a CPU. Below, a step's time
# counts more than a start's.
_DEEP = 17


def is_deep(config: model_config.ModelConfig) -> bool:
  """Returns whether a model is to run in programs of a layer each."""
  return dispatch.platform() == 'cpu' and len(config.layers()) >= _DEEP


def choose(
  network: extend.Network,
  jit: Callable[..., Any],
  text: Callable[..., tuple[jax.Array, ...]],
  end: Callable[..., Any],
) -> Callable[..., Any]:
  """Returns what `Layered` does, in one program where that is better."""
  is_layered = network.reference_length is None and is_deep(
    network.model.config
  )
  return (Layered if is_layered else join)(network, jit, text, end)


def join(
  network: extend.Network,
  jit: Callable[..., Any],
  text: Callable[..., tuple[jax.Array, ...]],
  end: Callable[..., Any],
) -> Callable[..., Any]:
  """Returns one program that does what `Layered` does; arguments as there."""

  def call(params, cache, rings, state, *given):
    *given, head = given
    hidden_BLD, cache = extend.text(
      network, params, cache, rings, *text(state, *given)
    )
    return end(params, cache, state, hidden_BLD, *given, head), cache

  return jit(call, donate_argnums=(1, 3))


class Programs(NamedTuple):
  """The functions of a call: `first`, one for each layer, and `last`."""

  first: Callable[..., Any]
  layers: Sequence[Callable[..., Any]]
  last: Callable[..., Any]


class Layered:
  """Does what one program of `extend.text` and its ends would do.

  Call it as `function(params, cache, rings, state, *given, head)`; it takes the
  cache and the state. `lower(…).compile()` returns a function of one shape, as
  `jax.jit` does. `text(state, *given)` gives the rows, tokens and counts of
  `extend.text`, `end(params, cache, state, hidden_BLD, *given, head)` the
  result.
  """

  def __init__(
    self,
    network: extend.Network,
    jit: Callable[..., Any],
    text: Callable[..., tuple[jax.Array, ...]],
    end: Callable[..., Any],
  ):
    self._network = network
    self._layers = network.model.config.layers()
    kinds = [dataclasses.replace(layer, kv_from=0) for layer in self._layers]
    programs = {kind: jit(_layer(network, kind)) for kind in kinds}
    self._programs = Programs(
      jit(functools.partial(_first, network, text)),
      [programs[kind] for kind in kinds],
      jit(functools.partial(_last, network, text, end), donate_argnums=(1, 3)),
    )

  def __call__(
    self, params: Any, cache: cache_lib.Cache, *arguments: Any
  ) -> Any:
    return self._run(self._programs, params, cache, *arguments)

  def lower(self, *arguments: Any) -> '_Lowered':
    """Returns the call of these shapes, lowered."""
    lowered: dict[Any, Any] = {}
    order: list[Any] = []

    def lower(function, *given):
      # Layers of a kind differ in whether they make keys and values.
      key = function, jax.tree.structure(given)
      if key not in lowered:
        lowered[key] = function.lower(*given)
      order.append(lowered[key])
      return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), lowered[key].out_info
      )

    first, layers, last = self._programs
    self._run(
      Programs(
        functools.partial(lower, first),
        [functools.partial(lower, layer) for layer in layers],
        lambda *given: lower(last, *given),
      ),
      *arguments,
    )
    return _Lowered(self._run, order)

  def _run(self, programs, params, cache, rings, state, *given):
    *given, head = given
    others = {name: x for name, x in params.items() if name != _BLOCKS}
    x_BLD, context, tables = programs.first(others, cache, state, *given)
    pasts = cache_lib.join_pasts(cache, self._network.pools, tables)
    made: dict[int, past.KeyValue] = {}
    for index, layer in enumerate(self._layers):
      owner = layer.kv_from
      x_BLD, key_value = programs.layers[index](
        params[_BLOCKS][f'layer_{index}'],
        x_BLD,
        made.get(owner),
        context,
        pasts[owner],
      )
      if owner == index:
        made[index] = key_value
    return programs.last(others, cache, rings, state, x_BLD, made, head, *given)


class _Lowered(NamedTuple):
  run: Callable[..., Any]
  order: Sequence[Any]

  def compile(self) -> Callable[..., Any]:
    compiled = {id(one): one.compile() for one in self.order}
    first, *layers, last = (compiled[id(one)] for one in self.order)
    return functools.partial(self.run, Programs(first, layers, last))


def _first(network, text, params, cache, state, *given):
  row_B, tokens_BL, count_B = text(state, *given)
  visibility, _ = extend.see(cache.length_R[row_B], count_B, tokens_BL)
  x_BLD, context = network.model.apply(
    {'params': params}, tokens_BL, visibility, method='enter'
  )
  return (
    x_BLD,
    context,
    cache_lib.tables(cache, network.pools, row_B, visibility),
  )


def _layer(network, kind):
  model = network.model
  module = block.TransformerLayer(
    model.config, kind, model.z_target, parent=None
  )

  def run(params, x_BLD, key_value, context, past):
    context = context._replace(pasts={0: past})
    return module.apply({'params': params}, x_BLD, key_value, context)

  return run


def _last(
  network, text, end, params, cache, rings, state, x_BLD, made, head, *given
):
  hidden_BLD = network.model.apply({'params': params}, x_BLD, method='leave')
  cache = extend.keep(
    network, cache, rings, *text(state, *given), hidden_BLD, made
  )
  return end(params, cache, state, hidden_BLD, *given, head), cache
