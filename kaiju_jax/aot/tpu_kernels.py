"""Compiles a TPU's kernels without the device, and reads their bundles.

    counts = tpu_kernels.read(make, 'v6e_256')
    counts['attention']['vmatmul s8']

libtpu can dump its assembly, bundle by bundle. The dump is no public interface:
a later version may have another form. Instructions are counted in the text: an
instruction in a loop counts once.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
from typing import Any

from kaiju_jax.aot import build
from kaiju_jax.aot import devices
from kaiju_jax.aot import ptx

_VMATMUL = re.compile(r'\bvmatmul([\w.]*)')
_BUNDLES = re.compile(r'\d+-(.+?)(?:\.\d+)?-\d+-final_bundles\.txt')


def read(
  make: Callable[[], tuple[Any, Sequence[Any]]], accelerator: str = 'v5p_128'
) -> dict[str, ptx.Counts]:
  """Compiles for a TPU and returns {kernel: counts of matrix instructions}.

  The operands' type names an instruction: 'vmatmul s8', 'vmatmul bf16'. libtpu
  reads the dump's folder once, when it is loaded, so `read` compiles in a new
  process.

  Args:
    make: returns a `jax.jit` and its arguments as in `gpu_kernels.read`. It
      must be a module's function, or a `functools.partial` of one, because it
      is pickled.
    accelerator: a TPU slice of `tpu_gpu_configs`.

  Raises:
    devices.MissingPlugin: names the package that is missing.
    RuntimeError: the compiler failed; holds its messages.
  """
  found = collections.defaultdict(ptx.Counts)
  with dump(make, accelerator) as folder:
    for name, file in final_bundles(folder):
      for modifiers in _VMATMUL.findall(file.read_text()):
        types = [t for t in modifiers.split('.') if ptx.OPERAND.fullmatch(t)]
        # An instruction without a type multiplies float32.
        found[name][f'vmatmul {types[0] if types else "f32"}'] += 1
  return dict(found)


@contextlib.contextmanager
def dump(
  make: Callable[[], tuple[Any, Sequence[Any]]], accelerator: str
) -> Iterator[pathlib.Path]:
  """Compiles like `read`, and yields the folder with libtpu's dump."""
  devices.one(accelerator, 'tpu')
  with tempfile.TemporaryDirectory() as folder:
    arguments = os.environ.get('LIBTPU_INIT_ARGS', '')
    done = subprocess.run(
      [sys.executable, '-m', __name__],
      input=pickle.dumps((make, accelerator)),
      capture_output=True,
      env=os.environ
      | {
        'PYTHONPATH': os.pathsep.join(sys.path),
        'LIBTPU_INIT_ARGS': (
          f'{arguments} --xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
        ),
      },
    )
    if done.returncode:
      raise RuntimeError(
        f'compiling for {accelerator}: {done.stderr.decode(errors="replace")}'
      )
    yield pathlib.Path(folder)


def final_bundles(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
  """Yields each kernel's name and the file of its final bundles."""
  for file in sorted(folder.iterdir()):
    if match := _BUNDLES.fullmatch(file.name):
      yield match[1], file


def _compile() -> None:
  """Compiles the function that `dump` sends through standard input."""
  make, accelerator = pickle.load(sys.stdin.buffer)
  jitted, arguments = make()
  build.build(jitted, devices.place(arguments, devices.one(accelerator, 'tpu')))


if __name__ == '__main__':
  _compile()
