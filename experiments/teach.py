"""Writes a teacher's distributions of a training text: offline distillation.

    python -m experiments.teach --teacher=runs/big --out=runs/targets \\
        --config=tiny [--config.data.path=FOLDER …]

The teacher is a workdir, an export in our own format, or any Hugging Face
folder that `experiments.import_hf` reads. The weights of such a folder are held
as int8 codes, one byte per weight, and the KL divergence that this costs is
printed. `--config` is the student's: its training text is taught,
its held-out documents are not. Without it, the text of the teacher's own run
is. A student then reads the targets beside its rows:

    python -m experiments.train --config=tiny \\
        --config.objective.name=distillation --workdir=runs/small \\
        --config.data.teacher=runs/targets

Rows, batches and order of the student's text may be any; the tokenizer must be
the teacher's. Some entries of each distribution are drawn, without bias
(`--method`, `--draws`; kaiju_jax/distillation/sample.py). Ctrl-C saves, and the
same command goes on.
"""

from collections.abc import Sequence
import dataclasses

from absl import flags
from ml_collections import config_flags

from kaiju_jax.distillation import config as distillation_config
from kaiju_jax.runs import command

_TEACHER = flags.DEFINE_string(
  'teacher', None, 'Workdir, export or Hugging Face folder.'
)
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  "The student's experiment, whose text is taught: NAME:ARM, or PATH:ARM. The"
  " teacher's own by default.",
  lock_config=True,
)
_OUT = flags.DEFINE_string('out', None, 'Folder of the targets.')
_METHOD = flags.DEFINE_enum(
  'method',
  'systematic',
  distillation_config.METHODS,
  'How entries are drawn. top_k is biased, for comparison.',
)
_DRAWS = flags.DEFINE_integer(
  'draws', 50, 'Points per token: more of them cost bytes and spare error.'
)
_K = flags.DEFINE_integer(
  'k', 0, "Entries per token of 'top_k', and of 'gumbel' with a fixed number."
)
_ENTRIES = flags.DEFINE_integer(
  'entries',
  0,
  "Slots per token; 0 for as many as --draws or --k, V for 'full'.",
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature', 1.0, "Divides the teacher's logits."
)
_SEED = flags.DEFINE_integer('seed', 0, "The sampling's seed.")
_LENGTH = flags.DEFINE_integer(
  'length', 0, "Tokens per row that the teacher reads; 0 for the config's."
)
_BATCH = flags.DEFINE_integer(
  'batch', 0, "Rows that it reads at a time; 0 for the config's."
)
_OVERLAP = flags.DEFINE_float(
  'overlap',
  0.25,
  'The part of a row that each token of a long document has before it.',
)
_COMPARE = flags.DEFINE_bool(
  'compare',
  True,
  "Print what a Hugging Face folder's codes change: the mean KL divergence from"
  ' its float32 model over one row. It takes the memory of that model.',
)
_SHARD = flags.DEFINE_integer(
  'shard', 256, 'Records of 1,024 tokens per shard; a kill loses one shard.'
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _TEACHER, _OUT)
  _teach()


def _teach() -> None:
  sampling = _sampling()
  # These import jax, which costs seconds that a refusal should not.
  from kaiju_jax.runs import load
  from kaiju_jax.runs import teach

  loaded = teach.load_teacher(_TEACHER.value)
  if sampling.method == 'full' and not _ENTRIES.value:
    sampling = dataclasses.replace(sampling, entries=loaded.config.vocab_size)
  experiment = _CONFIG.value or loaded.experiment
  if experiment is None:
    raise ValueError(
      f'--config is missing: {_TEACHER.value} is no workdir, and does not say'
      ' what text to teach.'
    )
  plan = teach.plan(
    loaded,
    experiment,
    sampling,
    length=_LENGTH.value,
    batch=_BATCH.value,
    overlap=_OVERLAP.value,
    shard=_SHARD.value,
  )
  if _COMPARE.value and not loaded.is_ours:
    floats = load.from_anywhere(_TEACHER.value)
    divergence, tokens = teach.compare(plan, floats)
    del floats
    print(
      f'{_TEACHER.value}: KL divergence of the int8 weights from float32:'
      f' {divergence:.2e} nats per token, over {tokens} tokens.'
    )
  manifest = teach.teach(plan, _OUT.value)
  if manifest is None:
    print('Interrupted and saved. The same command goes on.')
    return
  print(
    f'{_OUT.value}: {sampling.method} targets of'
    f' {sum(one.tokens for one in manifest.corpora.values()):,} tokens,'
    f' {manifest.bytes_per_token():.1f} bytes per token.'
  )


def _sampling() -> distillation_config.Sampling:
  """Returns the sampling that the flags name.

  Raises:
    ValueError: names the flag, its value and what would be right.
  """
  sampling = distillation_config.Sampling(
    method=_METHOD.value,
    draws=_DRAWS.value,
    k=_K.value,
    temperature=_TEMPERATURE.value,
    seed=_SEED.value,
    entries=_ENTRIES.value or _K.value or _DRAWS.value,
  )
  distillation_config.check(sampling)
  return sampling


if __name__ == '__main__':
  command.run(main)
