r"""Measure how fast the engine serves, beside peers, over HTTP, overloaded.

    taskset -c 0,1 python -m experiments.benchmarks.serve
        [--parts=reuse,between,overload,curve]
        [--turns=2] [--json=PATH] [--figure=PATH]
    taskset -c 0,1 python -m experiments.benchmarks.serve --http

The model is that of `benchmarks.decode`, 96.6 M parameters in the shape of
Arcee, so that peers serve equal weights: transformers' continuous
batching (extra `interchange`), and llama.cpp where it is installed (`pip
install xllamacpp gguf`). What is not installed is said and left out.

`load_test/serving_parts.py` says what each part measures;
`curve` serves the same Poisson load at several rates and draws the latency of
the first token, ours and theirs. Compilations after the warm-up are counted;
the target is none.

--http serves the same load over HTTP instead, beside the engine without it, and
says what conversations reuse.
"""

from collections.abc import Sequence
import os
import pathlib
import tempfile

from kaiju_jax.experiments.benchmarks import harness
from kaiju_jax.experiments.benchmarks.parts import settings as settings_lib
from kaiju_jax.reporting import report
from kaiju_jax.runs import command
from kaiju_jax.runs import flags

_FLAGS = flags.flags_of(settings_lib.ServeSettings)


def main(argv: Sequence[str]) -> None:
  settings = _FLAGS.read(argv)
  settings.check()
  # Before what a peer imports: its threads would spin.
  os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
  from kaiju_jax.experiments.benchmarks.load_test import bench

  page = report.Report()
  measure = bench.measure_over_http if settings.http else bench.measure
  try:
    with tempfile.TemporaryDirectory() as folder:
      found = measure(pathlib.Path(folder), settings, page)
  finally:
    page.show()
  harness.keep(found, settings.json)
  if settings.figure and 'curve' in found:
    bench.draw(found['curve'], settings.figure)


if __name__ == '__main__':
  command.run(main)
