"""Write a teacher's distributions of a training text: offline distillation.

    python -m experiments.teach --teacher=runs/big --out=runs/targets \\
        --config=tiny [--config.data.path=FOLDER …]

The teacher is any model; a Hugging Face folder is held as int8 codes, and the
KL divergence that this costs is printed. `--config` is the student's: its
training text is taught. Without it, the text of the teacher's own run is. A
student then reads the targets beside its rows, by
--config.objective.name=distillation and --config.data.teacher=runs/targets.
Its rows, batches and order may be any; the tokenizer must be the teacher's.
Ctrl-C saves, and the same command goes on.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.runs import command
from kaiju_jax.runs import flags
from kaiju_jax.training import experiment as experiment_lib

_SAMPLING = distillation_config.Sampling(entries=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # Workdir, export or Hugging Face folder.
  teacher: str
  # The student's experiment, whose text is taught: NAME:ARM, or PATH:ARM. The
  # teacher's own by default.
  config: experiment_lib.Experiment | None = None
  # Folder of the targets.
  out: str
  sampling: distillation_config.Sampling = _SAMPLING
  # Tokens per row that the teacher reads; 0 for the config's.
  length: int = 0
  # Rows that it reads at a time; 0 for the config's.
  batch: int = 0
  # The part of a row that each token of a long document has before it.
  overlap: float = 0.25
  # Print what a Hugging Face folder's codes change: the mean KL divergence from
  # its float32 model over one row. It takes the memory of that model.
  compare: bool = True
  # Records of 1,024 tokens per shard; a kill loses one shard.
  shard: int = 256


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  asked = settings.sampling
  entries = asked.entries or asked.k or asked.draws
  sampling = dataclasses.replace(asked, entries=entries)
  distillation_config.check(sampling)
  from kaiju_jax.experiments.studies import teach

  teach.run(settings, sampling)


if __name__ == '__main__':
  command.run(main)
