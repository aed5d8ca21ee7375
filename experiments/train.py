"""Train what a config describes; the same command again resumes.

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

from collections.abc import Sequence
import dataclasses

from kaiju_jax.experiments import hardware_flags
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.runs import train
from kaiju_jax.training import experiment as experiment_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # The experiment: NAME or NAME:ARM, or a path.
  config: experiment_lib.Experiment
  # Where the run writes; made where it does not exist.
  workdir: str
  hardware: hardware_flags.Hardware


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  hardware = settings.hardware
  mesh = hardware.prepare()
  train.train(settings.config, settings.workdir, mesh, hardware.cluster())


if __name__ == '__main__':
  command.run(main)
