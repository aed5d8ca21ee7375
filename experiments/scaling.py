"""How does the loss fall with parameters and tokens, and what comes next?

    python -m experiments.scaling [--widths=32,48,64,96]
        [--tokens=262144,524288,1048576,2097152] [--largest=128:4194304]
        [--rate_slope=-0.5] [--seeds=0] [--config=PATH]
        [--config.FIELD=VALUE …] [--out=runs/scaling]

Trains the config in each width on each number of tokens, fits

    L(N, D) = E + A / N^α + B / D^β

and predicts a run that has more of both than any that was fitted. Beside the
law stand two contrasts: the law without E, and the loss of the largest fitted
run. The learning rate goes with width^rate_slope from the config's, as
`experiments.rates` measures it.

Where an exponent stands at its bound, the bootstrap is wide or the residuals
follow a curve, the report says that the fit is not to be trusted.

ROOT gets a workdir per run, scaling.json and scaling.png. The same command goes
on where it was stopped and repeats nothing.
"""

from collections.abc import Sequence
import pathlib

from absl import flags
from ml_collections import config_flags

from kaiju_jax.runs import command
from kaiju_jax.runs import report
from kaiju_jax.storage import addresses

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  str(pathlib.Path(__file__).parent / 'configs' / 'sweep.py'),
  'What is trained, at any width: NAME:ARM, or PATH:ARM.',
)
_WIDTHS = flags.DEFINE_list(
  'widths', ['32', '48', '64', '96'], 'Widths d_model that are fitted.'
)
_TOKENS = flags.DEFINE_list(
  'tokens',
  ['262144', '524288', '1048576', '2097152'],
  'Training tokens of each width.',
)
_LARGEST = flags.DEFINE_string(
  'largest', '128:4194304', 'WIDTH:TOKENS of the run that is held out.'
)
_SLOPE = flags.DEFINE_float(
  'rate_slope', -0.5, 'The learning rate goes with width to this power.'
)
_SEEDS = command.define_seeds('0')
_OUT = flags.DEFINE_string('out', 'runs/scaling', 'Where everything goes.')
_JOBS = flags.DEFINE_integer(
  'jobs',
  None,
  'Processes at once, the cores split among them; by default one per core.'
  ' Give 1 on an accelerator.',
  lower_bound=1,
)


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  widths, tokens = _numbers(_WIDTHS), _numbers(_TOKENS)
  if len(widths) < 3 or len(tokens) < 3:
    raise ValueError(
      f'--widths={_WIDTHS.value} and --tokens={_TOKENS.value}: the law needs'
      ' three or more of each.'
    )
  largest = _largest(widths[-1], tokens[-1])
  report.require_figures()
  command.seeds(_SEEDS)
  if not _OUT.value:
    raise ValueError('--out=: must name a folder.')
  addresses.refuse(_OUT.value, f'--out={_OUT.value}')
  _study(widths, tokens, largest)


def _numbers(flag) -> list[int]:
  """Returns a list flag's positive whole numbers, rising."""
  return sorted({_number(flag.name, text) for text in flag.value})


def _number(name: str, text: str) -> int:
  if not (text.isascii() and text.isdigit() and int(text)):
    raise ValueError(f'--{name}: {text!r} is not a positive whole number.')
  return int(text)


def _largest(width: int, tokens: int) -> tuple[int, int]:
  first, _, second = _LARGEST.value.partition(':')
  wanted = _number('largest', first), _number('largest', second)
  if wanted[0] <= width or wanted[1] <= tokens:
    raise ValueError(
      f'--largest={_LARGEST.value}: must be wider than {width} and longer than'
      f' {tokens} tokens, the largest that are fitted.'
    )
  return wanted


def _study(
  widths: list[int], tokens: list[int], largest: tuple[int, int]
) -> None:
  from kaiju_jax.runs.sweeps import scaling
  from kaiju_jax.runs.sweeps import scaling_report
  from kaiju_jax.runs.sweeps import watch

  root = pathlib.Path(_OUT.value)
  study = scaling.measure(
    _CONFIG.value,
    [(width, count) for width in widths for count in tokens],
    largest,
    command.seeds(_SEEDS),
    _SLOPE.value,
    root,
    _JOBS.value,
  )
  files = scaling_report.write(root, study)
  watch.show(scaling_report.parts(study), files)


if __name__ == '__main__':
  command.run(main)
