"""Print a model before anything compiles: layers, parameters, KV, memory.

    python -m experiments.describe --preset=110b [--arm=ternary]
    python -m experiments.describe --config=tiny \\
        [--config.model.window=512 …] [--fsdp=8 --tensor=2 --batch=16]

Imports no jax: the figures are arithmetic on the config, and the training
memory is an estimate (`kaiju_jax/costs/footprint.py` has the formula).
"""

from collections.abc import Sequence
import pathlib

from kaiju_jax.costs import describe
from kaiju_jax.experiments.studies import plan_settings as settings_lib
from kaiju_jax.model import presets
from kaiju_jax.runs import command
from kaiju_jax.runs import configs
from kaiju_jax.runs import flags

FLAGS = flags.flags_of(settings_lib.Describe)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  FLAGS.refuse_beside('config', 'arm')
  fsdp, tensor = settings.fsdp, settings.tensor
  if settings.config is not None:
    name = pathlib.Path(configs.find_file()).name
    model, data = settings.config.model, settings.config.data
    batch, length = data.batch, data.length
  else:
    name, model = settings.preset, presets.preset(settings.preset, settings.arm)
    if fsdp is None and tensor is None:
      fsdp, tensor = presets.MESHES.get(name, (1, 1))
    batch, length = fsdp or 1, min(model.max_length, 8192)
  page = describe.describe(
    model,
    name=name,
    batch=batch if settings.batch is None else settings.batch,
    length=length if settings.length is None else settings.length,
    fsdp=1 if fsdp is None else fsdp,
    tensor=1 if tensor is None else tensor,
    lengths=settings.lengths,
  )
  page.show()


if __name__ == '__main__':
  command.run(main)
