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

from absl import flags

from kaiju_jax.experiments.studies.sweeps import study
from kaiju_jax.runs import command
from kaiju_jax.runs import overrides

_CONFIG = study.define_config('sweep')
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
_STUDY = study.define('runs/scaling', '0')


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  overrides.refuse(
    {'loop.tokens': '--tokens', 'loop.steps': '--tokens', 'seed': '--seeds'}
  )
  why = 'the law needs three or more'
  widths = command.numbers(_WIDTHS, int, 3, why)
  tokens = command.numbers(_TOKENS, int, 3, why)
  largest = _largest(widths[-1], tokens[-1])
  _STUDY.check()
  from kaiju_jax.experiments.studies.sweeps import scaling
  from kaiju_jax.experiments.studies.sweeps import scaling_report

  places = [(width, count) for width in widths for count in tokens]
  settings = scaling.Settings(places, largest, _STUDY.seeds, _SLOPE.value)
  _STUDY.run(scaling, scaling_report, _CONFIG.value, settings)


def _largest(width: int, tokens: int) -> tuple[int, int]:
  """Returns the width and tokens of what is held out."""
  first, _, second = _LARGEST.value.partition(':')
  is_named = first.isdecimal() and second.isdecimal()
  if not is_named or int(first) <= width or int(second) <= tokens:
    raise ValueError(
      f'--largest={_LARGEST.value}: must be wider than {width} and longer than'
      f' {tokens} tokens, the largest that are fitted; write 128:4194304.'
    )
  return int(first), int(second)


if __name__ == '__main__':
  command.run(main)
