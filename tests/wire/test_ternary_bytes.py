"""Bytes on the wire, read out of the compiled update."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from kaiju_jax.costs import training_memory
from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.training import state as state_lib
from kaiju_jax.wire import ternary
from kaiju_jax.wire import ternary_plan

_COLLECTIVE = re.compile(
  r'= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all'
  r'|collective-permute)(?:-start)?\('
)
_ARRAY = re.compile(r'\b([usf]\d+|bf16|pred)\[([\d,]*)\]')


def received_bytes(text):
  """Returns {(computation, collective, dtype): bytes of its result}."""
  found, computation = {}, None
  for line in text.splitlines():
    if line.endswith('{') and not line.startswith(' '):
      computation = line.split()[0]
    if match := _COLLECTIVE.search(line):
      for dtype, sizes in _ARRAY.findall(match[1]):
        width = 1 if dtype == 'pred' else int(re.sub(r'\D', '', dtype)) // 8
        size = width * int(np.prod([int(n) for n in sizes.split(',') if n]))
        key = computation, match[2], dtype
        found[key] = found.get(key, 0) + size
  return found


def narrow():
  """Widths of the preset 1b, two layers of its 28."""
  config = presets.preset('1b')
  config.layout = 'L0 G1'
  return config


def compiled_update(fsdp, tensor):
  """Returns the plan, the compiled update's text, and a device's codes."""
  config = narrow()
  model = transformer.Transformer(config)
  params = jax.eval_shape(functools.partial(state_lib.init_params, model), 0)
  plan = ternary.Plan(ternary_plan.layouts(params), least_scale=1e-3)
  mesh = mesh_lib.make(sharding_config.MeshConfig(fsdp, tensor))
  shardings = rules.shardings(params, mesh)
  masters = jax.tree.map(lambda sharding: sharding.spec, shardings)
  replicas = ternary_plan.specs(plan, params)
  on_mesh = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
  start = on_mesh(
    functools.partial(ternary.start, plan),
    in_specs=(masters,),
    out_specs=replicas,
  )
  update = on_mesh(
    functools.partial(ternary.update, plan),
    in_specs=(replicas, masters, PartitionSpec()),
    out_specs=(replicas, PartitionSpec()),
  )
  state = jax.eval_shape(start, params)
  step = jax.ShapeDtypeStruct((), jnp.int32)
  lowered = jax.jit(update, donate_argnums=0).lower(state, params, step)
  count = sum(
    codes.size // (tensor if 'tensor' in replicas.codes[path] else 1)
    for path, codes in state.codes.items()
  )
  return plan, lowered.compile().as_text(), count


@pytest.mark.parametrize(
  'fsdp, tensor', [pytest.param(8, 1, marks=pytest.mark.slow), (4, 2)]
)
def test_an_update_is_a_tenth_of_bf16_and_a_fifth_of_int8(fsdp, tensor):
  plan, text, count = compiled_update(fsdp, tensor)
  found = received_bytes(text)
  always = {key[1:]: size for key, size in found.items() if key[0] == 'ENTRY'}
  rare = {}
  for (where, *key), size in found.items():
    if where != 'ENTRY':
      rare[tuple(key)] = rare.get(tuple(key), 0) + size
  # Channels that `tensor` splits agree on their events within a node.
  agreed = always.pop(('all-reduce', 's8'), 0)
  assert agreed == (0 if tensor == 1 else 2 * 2048 / fsdp * 2)
  # Every step: trits alone.
  assert list(always) == [('all-gather', 'u8')]
  # Some steps: events, and a checksum of 8 bytes.
  events = rare.pop(('all-gather', 'u8')) / plan.events_every
  checksum = rare.pop(('all-reduce', 'u32'))
  assert checksum == 8
  # An all-reduce passes its bytes twice.
  wire = always['all-gather', 'u8'] + events + 2 * agreed
  wire += 2 * checksum / plan.check_every
  # Only where damage was found: all int8 codes.
  assert rare.pop(('all-gather', 's8')) == count
  # A maximum over devices goes over floats' bits.
  scales = rare.pop(('all-gather', 'f32')) + rare.pop(('all-reduce', 's32'))
  assert scales < 0.01 * count
  assert set(rare) <= {('all-reduce', 's32')} and sum(rare.values()) <= 4
  assert training_memory.replica_codes(narrow(), tensor) == count
  # The time model's: five trits to a byte, padding apart.
  assert 1 <= always['all-gather', 'u8'] / (count / 5) < 1.01
  assert 2 * count / wire >= 9.8
  assert count / wire >= 4.9
