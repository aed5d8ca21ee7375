"""How far is decoding through the cache from the forward pass of training?

    python -m experiments.train --config=tiny \\
        --workdir=runs/tiny
    python -m experiments.cached_agreement --model=runs/tiny \\
        [--rows=8] [--prompt=256] [--chunk=64]

Runs held-out text of a trained run both ways (a needle run's questions, where
the run has no text) and compares the loss per token, the logits, the greedy
tokens, and the codes of keys and values.
"""

from collections.abc import Sequence

from absl import app
from absl import flags
import rich.console
import rich.table

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'Workdir of one run.')
_ROWS = flags.DEFINE_integer('rows', 8, 'Number of texts.', lower_bound=1)
_PROMPT = flags.DEFINE_integer(
  'prompt', None, 'Tokens that are run in chunks; half of a text by default.'
)
_CHUNK = flags.DEFINE_integer(
  'chunk', 64, 'Tokens of a chunk, and slots of a page.', lower_bound=1
)


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL)
  command.begin()
  try:
    rich.console.Console().print(_table())
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def _table() -> rich.table.Table:
  from kaiju_jax.evaluation import cached_agreement
  from kaiju_jax.runs import load
  from kaiju_jax.tasks import registry as tasks

  found = load.from_workdir(_MODEL.value)
  tokens_BL = tasks.texts(found.experiment, _ROWS.value)
  rows, length = tokens_BL.shape
  prompt = length // 2 if _PROMPT.value is None else _PROMPT.value
  counted = cached_agreement.compare(
    found.params,
    found.experiment.model,
    tokens_BL,
    prompt=prompt,
    chunk=_CHUNK.value,
    page=_CHUNK.value,
    replica=found.replica,
  )
  table = rich.table.Table(
    title=f'{_MODEL.value}: {rows} texts of {length} tokens, {prompt} of them'
    f' in chunks of {_CHUNK.value}',
    show_header=False,
  )
  for name, value in _lines(counted):
    table.add_row(name, value)
  return table


def _lines(counted):
  """Yields what was counted, in words and numbers."""
  yield 'loss, one forward pass', f'{counted.loss:.6f} nats per token'
  yield 'loss, through the cache', f'{counted.cached_loss:.6f} nats per token'
  yield 'relative difference', f'{counted.loss_difference:.1e}'
  yield 'largest logit', f'{counted.largest_logit:.3f}'
  yield 'largest difference', f'{counted.largest_difference:.2e}'
  tokens = counted.tokens
  yield 'greedy tokens', f'{counted.greedy_differs:,} of {tokens:,} differ'
  yield 'largest margin of those', f'{counted.greedy_margin:.2e}'
  for layer, (codes, differ) in counted.codes.items():
    yield (
      f'codes, layer {layer}',
      f'{differ:,} of {codes:,} differ ({100 * differ / codes:.3f} %)',
    )
  if counted.codes:
    codes, differ = map(sum, zip(*counted.codes.values()))
    yield (
      'codes, all',
      f'{differ:,} of {codes:,} ({100 * differ / codes:.3f} %)',
    )


if __name__ == '__main__':
  app.run(main)
