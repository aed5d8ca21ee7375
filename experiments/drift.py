"""Make a candidate of the limits that a server's traffic calls for.

    python -m experiments.drift --model=RUN --folder=runs/server --out=EXPORT

A server with --drift=watch writes a checkpoint of the limits that its traffic
calls for every four hours. This command makes a candidate of the newest one, or
of the file --limits: the same weights with other limits. It is another model,
with a root of its own in the prefix cache: hold it to the quantization gate
(`experiments.gate --baseline=RUN --candidate=EXPORT`) before it serves. The way
back is RUN itself.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # A workdir or an export.
  model: str
  # Of the server.
  folder: str = 'runs/server'
  # File of a checkpoint of --folder; the newest by default.
  limits: str = ''
  # A new folder for the candidate.
  out: str


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.app import drift

  found = drift.make_candidate(
    settings.model, settings.folder, settings.out, settings.limits
  )
  least, middle, largest = found.moved
  print(
    f'{found.origin}: limits × {least:.2f} to {largest:.2f}, {middle:.2f} in'
    f' the median.\n{settings.out}: weights {found.digest}. Next: kaiju gate'
    f' --baseline={settings.model} --candidate={settings.out}'
  )


if __name__ == '__main__':
  command.run(main)
