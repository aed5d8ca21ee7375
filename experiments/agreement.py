"""Compare a trained run through its cache and its kernels with training.

    python -m experiments.needle --arms=kaiju
    python -m experiments.agreement --model=runs/needle/kaiju/seed0 \\
        [--of=cache] [--rows=8] [--prompt=128] [--chunk=64]
    python -m experiments.agreement --model=runs/needle/kaiju/seed0 \\
        --of=answers [--questions=16] [--mode=fast,reference]
    python -m experiments.agreement --model=runs/needle/kaiju/seed0 \\
        --of=kernels [--questions=16] [--attention=chunked,pallas_gpu]

Compares with one forward pass, as in training:

- cache: held-out text (a needle run's questions, where the run has no text)
  with a prompt in chunks and then token by token: the loss per token, the
  logits, the greedy tokens, and the codes of keys and values;
- answers: a needle run's questions, with the prompt in chunks into a cache and
  then the answer token by token: the accuracy over the grid;
- kernels: the same questions with each implementation of attention. What this
  platform cannot run is interpreted: the kernel's own arithmetic, tile by tile.
"""

from collections.abc import Sequence

from absl import app

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

# The flags that each comparison reads, beside --model.
_READ = {
  'cache': ('rows', 'chunk', 'prompt', 'tensor'),
  'answers': ('rows', 'chunk', 'questions', 'seed', 'mode', 'tensor'),
  'kernels': ('questions', 'seed', 'attention'),
}
FLAGS = flags.flags_of(settings_lib.Agreement)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  read = _READ[settings.of]
  for name in sorted(FLAGS.list_given() - {'model', 'of', *read}):
    raise app.UsageError(
      f'--of={settings.of} does not read --{name}; it reads'
      f' {", ".join(f"--{one}" for one in read)}.'
    )
  from kaiju_jax.experiments.studies import agreement
  from kaiju_jax.reporting import report

  compare = getattr(agreement, f'compare_{settings.of}')
  report.Report().add(compare(settings)).show()


if __name__ == '__main__':
  command.run(main)
