"""Make a candidate model of the limits that a server's traffic calls for.

    python -m experiments.drift --model=RUN --folder=runs/server --out=EXPORT

A server with --drift=watch writes a checkpoint of the limits that its traffic
calls for every four hours. This command makes a candidate of the newest one, or
of the file --limits: the same weights with other limits. It is another model,
with a root of its own in the prefix cache: hold it to the quantization gate
(`experiments.gate --baseline=RUN --candidate=EXPORT`) before it serves. The way
back is RUN itself.
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


def main(argv: Sequence[str]) -> None:
  command.check(argv, _MODEL, _OUT)
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


if __name__ == '__main__':
  command.run(main)
