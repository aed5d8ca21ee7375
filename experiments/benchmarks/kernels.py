"""All that the accelerator at hand can say of the kernels, in one command.

    python -m experiments.benchmarks.kernels [--out=runs/bench_kernels]
        [--only=squinch,block] [--autotune]

Runs each kernel's benchmark, and the layer block's (`bench_block`), one after
another, each in a process of its own: one that fails or hangs costs the others
nothing. Tables go to the terminal and, with the numbers, to OUT/<name>.txt and
OUT/<name>.json. With --autotune each kernel's blocks are searched for first;
the winners are files beside the kernels, to be read and checked in.

On a machine without an accelerator it counts instead of timing, and says so.
Ends with status 1 where a part failed, and names it.
"""

from collections.abc import Sequence
import pathlib
import subprocess
import sys
import time

from absl import flags

from kaiju_jax.runs import command

_OUT = flags.DEFINE_string('out', 'runs/bench_kernels', 'Where results go.')
_ONLY = flags.DEFINE_list('only', None, 'Parts to run; all by default.')
_AUTOTUNE = flags.DEFINE_bool('autotune', False, 'Search for blocks first.')
_LIMIT = flags.DEFINE_integer(
  'limit_s', 1800, 'Seconds that one process may take.', lower_bound=1
)

KERNELS = 'visibility_attention', 'int8_matmul', 'squinch', 'paged_decode'
PRESETS = '13b', '110b'


def parts(out: pathlib.Path, autotune: bool) -> dict[str, list[str]]:
  """Returns what there is to run: {name: arguments of python}."""
  found = {}
  for kernel in KERNELS:
    module = f'kaiju_jax.kernels.{kernel}'
    if autotune:
      found[f'{kernel}.autotune'] = ['-m', f'{module}.autotune']
    found[kernel] = ['-m', f'{module}.bench', f'--json={out / kernel}.json']
  for preset in PRESETS:
    name = f'block_{preset}'
    found[name] = ['-m', f'{__package__}.block', f'--preset={preset}']
    found[name] += [f'--json={out / name}.json']
  return found


def choose(
  every: dict[str, list[str]], only: Sequence[str] | None
) -> dict[str, list[str]]:
  """Returns the parts whose names begin as one of `only` does.

  Raises:
    ValueError: names what is no part's beginning.
  """
  for word in only or ():
    if not any(name.startswith(word) for name in every):
      raise ValueError(f'--only: {word!r} begins none of {", ".join(every)}.')
  return {
    name: words
    for name, words in every.items()
    if not only or name.startswith(tuple(only))
  }


def run_part(
  name: str, words: Sequence[str], out: pathlib.Path, limit: float
) -> str | None:
  """Runs one part; returns what went wrong, or None."""
  log = out / f'{name}.txt'
  print(f'\n== {name}: python {" ".join(words)}', flush=True)
  start = time.monotonic()
  problem = None
  with log.open('w') as file:
    try:
      done = subprocess.run(
        [sys.executable, *words],
        stdout=file,
        stderr=subprocess.STDOUT,
        timeout=limit,
      )
      if done.returncode:
        problem = f'status {done.returncode}'
    except subprocess.TimeoutExpired:
      problem = f'not done after {limit:g} s'
  print(log.read_text(), end='')
  print(f'== {name}: {problem or "done"}, {time.monotonic() - start:.0f} s')
  return problem


def main(argv: Sequence[str]) -> None:
  command.check(argv)
  out = pathlib.Path(_OUT.value)
  to_run = choose(parts(out, _AUTOTUNE.value), _ONLY.value)
  out.mkdir(parents=True, exist_ok=True)
  failed = {
    name: problem
    for name, words in to_run.items()
    if (problem := run_part(name, words, out, _LIMIT.value))
  }
  if failed:
    lines = [f'{name}: {problem}' for name, problem in failed.items()]
    raise SystemExit('failed: ' + '; '.join(lines))


if __name__ == '__main__':
  command.run(main, compiles=False)
