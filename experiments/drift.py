"""Does traffic still look like what keys and values were calibrated on?

    python -m experiments.drift --model=RUN --folder=runs/server --out=EXPORT
    python -m experiments.drift --drill --model=runs/chat [--windows=10000]
        [--shares=0.001,0.01] [--seeds=0,1,2]

A server with --drift=watch writes a checkpoint of the limits that its traffic
calls for every four hours. The first command makes a candidate of the newest
one, or of the file --limits: the same weights with other limits. It is another
model, with a root of its own in the prefix cache: hold it to the quantization
gate (`experiments.gate --baseline=RUN --candidate=EXPORT`) before it serves.
The way back is RUN itself.

--drill plays quiet windows, and a character whose traffic rises by 50 times, to
the guard and the filter, with keys and values of a real model. Needs a model
with kv='int8' and one head; kv_scale='token' gets limits for the drill.
"""

from collections.abc import Sequence

from absl import flags

from kaiju_jax.runs import command

_MODEL = flags.DEFINE_string('model', None, 'A workdir or an export.')
_FOLDER = flags.DEFINE_string('folder', 'runs/server', 'Of the server.')
_LIMITS = flags.DEFINE_string(
  'limits', '', 'File of a checkpoint of --folder; the newest by default.'
)
_OUT = flags.DEFINE_string('out', None, 'A new folder for the candidate.')
_DRILL = flags.DEFINE_bool('drill', False, 'Play the drill instead.')
_WINDOWS = flags.DEFINE_integer(
  'windows', 10_000, 'Quiet windows per seed, of three minutes each.', 1
)
_SHARES = flags.DEFINE_list(
  'shares',
  ['0.001', '0.003', '0.01', '0.02'],
  "The spiking character's shares of the traffic before the spike.",
)
_TIMES = flags.DEFINE_float('times', 50.0, 'By how much it rises.', 1.0)
_SEEDS = command.define_seeds(text='Seeds of the traffic.')
_MARKDOWN = flags.DEFINE_bool('markdown', False, 'Print tables in Markdown.')


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, *(() if _DRILL.value else (_OUT,)))
  if _DRILL.value:
    _drill()
    return
  from kaiju_jax.app import drift

  found = drift.make_candidate(
    _MODEL.value, _FOLDER.value, _OUT.value, _LIMITS.value
  )
  least, middle, largest = found.moved
  print(
    f'{found.origin}: limits × {least:.2f} to {largest:.2f}, {middle:.2f} in'
    f' the median.\n{_OUT.value}: weights {found.digest}. Next: kaiju gate'
    f' --baseline={_MODEL.value} --candidate={_OUT.value}'
  )


def _drill() -> None:
  from kaiju_jax.app import drift
  from kaiju_jax.reporting import report

  tables = drift.run_drill(
    _MODEL.value,
    _WINDOWS.value,
    command.numbers(_SHARES, float, below=1.0),
    command.seeds(_SEEDS),
    _TIMES.value,
    lambda what: print(f'done: {what}', flush=True),
  )
  for title, columns, rows in tables:
    page = report.Report().table(rows, columns, title)
    page.show(as_markdown=_MARKDOWN.value)


if __name__ == '__main__':
  command.run(main)
