"""Trains what a config describes; the same command again resumes.

    python -m experiments.train --config=tiny \\
        --workdir=runs/tiny [--config.model.window=512 …]

`--config=NAME` is `configs/NAME.py`, and `--config=PATH` any other file;
`:ARM` behind either picks a named arm. The workdir gets config.json,
environment.json, metrics.jsonl, TensorBoard events and checkpoints/. Ctrl-C
and SIGTERM save and leave with status 0; a second one aborts at once.

One device trains alone, unless --fsdp and --tensor, or --accelerator, spread
the run over all of them. On several hosts each starts the same command:

    … --accelerator=h100_64 --multihost

and where no cluster manager is found, --coordinator=HOST:PORT --processes=N
--process=I as well. If one dies, all end, and the same command resumes.
"""

from absl import flags
from ml_collections import config_flags

from kaiju_jax.experiments import hardware_flags
from kaiju_jax.runs import command
from kaiju_jax.runs import train

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'The experiment: NAME or NAME:ARM, or a path.',
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where the run writes; made where it does not exist.'
)


def main(argv) -> None:
  command.check(argv, _CONFIG, _WORKDIR)
  mesh = hardware_flags.prepare()
  train.train(_CONFIG.value, _WORKDIR.value, mesh, hardware_flags.cluster())


if __name__ == '__main__':
  command.run(main)
