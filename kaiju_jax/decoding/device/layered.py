"""A call of the model in programs of one layer each, for deep models on a CPU.

XLA's CPU compiles and loads each layer of a program anew, though all are equal.
So a call is a program that embeds the tokens, one that runs a layer, called for
each layer in turn, and one that keeps what the layers made and does the rest.
Layers of one kind share theirs. Each call of a program costs some 60 µs, a
quarter of a step: a step of numba's kernels is one program with a loop.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from kaiju_jax.decoding.device import cache as cache_lib
from kaiju_jax.decoding.device import extend
from kaiju_jax.decoding.device import packed
from kaiju_jax.decoding.device import tables as tables_lib
from kaiju_jax.kernels import choice
from kaiju_jax.kernels import dispatch
from kaiju_jax.kernels.int8_matmul import blocks as int8_matmul
from kaiju_jax.kernels.paged_decode import blocks as paged_decode
from kaiju_jax.model import block
from kaiju_jax.model import config as model_config
from kaiju_jax.model import layers as layers_lib
from kaiju_jax.model import past

_BLOCKS = 'blocks'
# Layers from which each is a program of its own on a CPU. Below, a step's time
# counts more than a start's.
_DEEP = 17
# Most layers of a loop's body, each of which is compiled.
_REPEATING = 6


def is_deep(config: model_config.ModelConfig) -> bool:
  """Returns whether a model is to run in programs of a layer each."""
  return dispatch.platform() == 'cpu' and len(config.layers()) >= _DEEP


def choose(
  network: extend.Network,
  jit: Callable[..., Any],
  text: Callable[..., tuple[jax.Array, ...]],
  end: Callable[..., Any],
  is_step: bool = False,
) -> Callable[..., Any]:
  """Returns what `Layered` does, in one program where that is better.

  With `is_step` a row of a call has one token.
  """
  is_layered = (
    network.reference_length is None
    and network.devices == 1
    and is_deep(network.model.config)
  )
  make = Layered if is_layered else join
  if is_layered and is_step and _can_loop(network):
    make = loop
  return make(network, jit, text, end)


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


def loop(
  network: extend.Network,
  jit: Callable[..., Any],
  text: Callable[..., tuple[jax.Array, ...]],
  end: Callable[..., Any],
) -> Callable[..., Any]:
  """Returns one program that does what `Layered` does, to the last bit.

  It is a loop over the repeating block of layers, which XLA compiles once.
  Numba's kernels read a layer's codes and pages where they lie
  (`kernels/choice.py`).
  """

  def call(params, cache, rings, state, *given):
    *given, head = given
    others = {name: x for name, x in params.items() if name != _BLOCKS}
    x_BLD, context, tables = _first(network, text, others, cache, state, *given)
    pasts = tables_lib.join_pasts(cache, network.pools, tables)
    x_BLD, made = _repeat(network, params[_BLOCKS], x_BLD, context, pasts)
    return _last(
      network, text, end, others, cache, rings, state, x_BLD, made, head, *given
    )

  return jit(call, donate_argnums=(1, 3))


def _can_loop(network: extend.Network) -> bool:
  """Returns whether the layers of a step repeat, and numba's kernels run all.

  What is no kernel's cannot read one array of several.
  """
  config, kernel = network.model.config, int8_matmul.numba_cpu()
  quantization, heads = config.quantization, config.num_heads
  if kernel is None or quantization.matmul_implementation:
    return False
  is_coded = (quantization.kv, quantization.kv_scale) == ('int8', 'token')
  queries = 1, heads // config.num_kv_heads, config.head_dim
  pools = [
    (x.pages, x.row_pages, x.slots, 1, x.window, is_coded)
    for x in network.pools.values()
  ]
  attended = [
    paged_decode.implementation('cpu', paged_decode.Shape(*queries, *pool))
    for pool in pools
  ]
  sizes = config.d_model, config.d_ff, heads * config.head_dim
  return (
    quantization.matmul == 'int8'
    and all(map(kernel.is_whole, sizes))
    and set(attended) == {'numba_cpu'}
    and len(layers_lib.repeating_block(config.layers())) <= _REPEATING
  )


def _repeat(network, blocks, x_BLD, context, pasts):
  """Returns the last layer's output, and what the layers made."""
  layers = network.model.config.layers()
  repeating = layers_lib.repeating_block(layers)
  repeats = [
    range(n, len(layers), len(repeating)) for n in range(len(repeating))
  ]

  def body(x_BLD, number):
    def choose(*several):
      return choice.Choice(number, several)

    def choose_codes(*several):
      if several[0].dtype == jnp.int8:
        return choose(*several)
      return jax.lax.switch(number, [lambda x=x: x for x in several])

    made = {}
    for place, layer in enumerate(repeating):
      owner = layer.kv_from
      weights = [blocks[f'layer_{n}'] for n in repeats[place]]
      pools = [pasts[n][:2] for n in repeats[owner]]
      x_BLD, key_value = _layer(network, dataclasses.replace(layer, kv_from=0))(
        jax.tree.map(choose_codes, *weights),
        x_BLD,
        made.get(owner),
        context,
        past.Past(*jax.tree.map(choose, *pools), pasts[owner].tables),
      )
      if owner == place:
        made[place] = key_value
    return x_BLD, made

  numbers = jnp.arange(len(repeats[0]), dtype=jnp.int32)
  x_BLD, made = jax.lax.scan(body, x_BLD, numbers)
  return x_BLD, {
    layer: jax.tree.map(lambda x, n=number: x[n], each)
    for place, each in made.items()
    for number, layer in enumerate(repeats[place])
  }


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
    pasts = tables_lib.join_pasts(cache, self._network.pools, tables)
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
    tables_lib.make(cache, network.pools, row_B, visibility),
  )


def _layer(network, kind):
  model = network.model
  module = block.TransformerLayer(
    model.config, kind, model.z_target, parent=None
  )

  def run(params, x_BLD, key_value, context, past):
    context = context._replace(pasts={0: past})
    params = packed.unpack(params)
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
