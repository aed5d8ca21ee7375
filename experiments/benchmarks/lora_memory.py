"""Compiles a step of adapters and one of all weights; prints their memory.

    python -m experiments.benchmarks.lora_memory
    python -m experiments.benchmarks.lora_memory --shape=smollm2-135m \\
        --ranks=8,64

Nothing is allocated: the steps are compiled for abstract arguments. Counted are
the compiler's arguments, results that alias none of them, and temporaries. The
base of the adapters has int8 codes and scales; the step of all weights has
float32 masters with Adam's moments and reads int8 codes of them.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.runs import command

_SHAPE = flags.DEFINE_enum(
  'shape', 'qwen3-0.6b', list(open_shapes.SHAPES), 'The shape of the model.'
)
_RANKS = flags.DEFINE_list('ranks', ['16'], 'Ranks of the adapters.')
_MATRICES = flags.DEFINE_string('matrices', '*', 'As config.lora.matrices.')
_BATCH = flags.DEFINE_integer('batch', 1, 'Rows of a microbatch.', 1)
_LENGTH = flags.DEFINE_integer('length', 1024, 'Tokens of a row.', 1)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  whole = _bytes(0)
  print(f'{_SHAPE.value}, {_BATCH.value} × {_LENGTH.value} tokens')
  print('| step | arguments, GB | temporaries, GB | sum, GB | of all weights |')
  print('|---|---|---|---|---|')
  _print('all weights', whole, whole)
  for rank in map(int, _RANKS.value):
    _print(f'rank {rank}', _bytes(rank), whole)


def _print(name: str, found: tuple[int, int], whole: tuple[int, int]) -> None:
  share = sum(found) / sum(whole)
  cells = [f'{value / 1e9:.3f}' for value in (*found, sum(found))]
  print(f'| {name} | {" | ".join(cells)} | {share:.3f} |', flush=True)


def _bytes(rank: int) -> tuple[int, int]:
  """Returns the bytes of a step's arguments and of what it adds to them."""
  from kaiju_jax.sharding import mesh as mesh_lib
  from kaiju_jax.training import step

  experiment = _experiment(rank)
  mesh = mesh_lib.single()
  made = step.make(experiment, mesh)
  compiled = made.lower(*step.abstract(experiment, mesh)).compile()
  memory = compiled.memory_analysis()
  added = memory.output_size_in_bytes - memory.alias_size_in_bytes
  return (
    memory.argument_size_in_bytes,
    added + memory.temp_size_in_bytes,
  )


def _experiment(rank: int):
  import dataclasses

  from kaiju_jax.data import config as data_config
  from kaiju_jax.interchange.families import registry
  from kaiju_jax.objectives import config as objective_config
  from kaiju_jax.quantization import config as quantization_config
  from kaiju_jax.training import config as training_config
  from kaiju_jax.training import experiment as experiment_lib

  fields = open_shapes.SHAPES[_SHAPE.value] | {
    'hidden_act': 'silu',
    'tie_word_embeddings': True,
  }
  model = dataclasses.replace(
    registry.read(fields).config,
    quantization=quantization_config.for_serving(),
    dtype='bfloat16',
    remat='layer',
    max_length=_LENGTH.value,
  )
  adapters = training_config.LoraConfig()
  if rank:
    adapters = training_config.LoraConfig(rank, 16.0, _MATRICES.value)
  return experiment_lib.Experiment(
    model=model,
    data=data_config.DataConfig(length=_LENGTH.value, batch=_BATCH.value),
    objective=objective_config.ObjectiveConfig(chunk=256),
    lora=adapters,
  )


if __name__ == '__main__':
  command.run(main)
