"""Bytes on the wire, read out of the compiled update."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from kaiju_jax.model import presets
from kaiju_jax.model import transformer
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.sharding import mesh as mesh_lib
from kaiju_jax.sharding import rules
from kaiju_jax.sharding import ternary
from kaiju_jax.sharding import ternary_plan
from kaiju_jax.training import state as state_lib

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
      computation = line.removeprefix('ENTRY ').split()[0]
    if match := _COLLECTIVE.search(line):
      for dtype, sizes in _ARRAY.findall(match[1]):
        width = 1 if dtype == 'pred' else int(re.sub(r'\D', '', dtype)) // 8
        size = width * int(np.prod([int(n) for n in sizes.split(',') if n]))
        key = computation, match[2], dtype
        found[key] = found.get(key, 0) + size
  return found


def compiled_update(preset, fsdp, tensor):
  """Returns the compiled update of a preset, and its number of weights."""
  config = presets.preset(preset)
  config.quantization.bungee = True
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
  weights = ternary_plan.weights_of(plan, params)
  return lowered.compile(), sum(w.size for w in weights.values())


def test_bytes():
  compiled, count = compiled_update('250m', 8, 1)
  print(received_bytes(compiled.as_text()), count, compiled.memory_analysis())
  compiled, count = compiled_update('250m', 4, 2)
  print(received_bytes(compiled.as_text()), count, compiled.memory_analysis())
  open('/tmp/w/scratch_ternary/hlo.txt', 'w').write(compiled.as_text())
  assert 0
