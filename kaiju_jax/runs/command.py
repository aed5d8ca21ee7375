"""Shared parts of all commands: flags, quiet libraries, Ctrl-C, compiled code.

Importing this module defines flags (`Common`), so only commands import it.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import sys

from absl import app
from absl import flags
from absl import logging

from kaiju_jax.interchange import fields
from kaiju_jax.runs import configs
from kaiju_jax.runs import flags as flags_lib
from kaiju_jax.runs import overrides
from kaiju_jax.runs import pool
from kaiju_jax.storage import folders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
  """The settings of every command."""

  # Keep compiled code in $XDG_CACHE_HOME/kaiju_jax (~/.cache/kaiju_jax), so
  # that the same command starts faster the next time.
  # JAX_COMPILATION_CACHE_DIR names another folder. The commands that this one
  # starts follow it.
  compilation_cache: bool = True
  # Unknown fields of the config.json of a Hugging Face folder to ignore, by
  # dotted name; they may change what the model computes. The commands that
  # this one starts ignore them, too.
  accept_field: tuple[str, ...] = ()


COMMON = flags_lib.flags_of(Common)
_CACHE_USED = 'JAX_ENABLE_COMPILATION_CACHE'
_CACHE_FOLDER = 'JAX_COMPILATION_CACHE_DIR'
# JAX keeps only programs that took at least this long to compile; its default
# of a second would leave out most of a small model.
_CACHE_SECONDS = 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'


def parse(argv: Sequence[str]) -> list[str]:
  """Reads the flags for `app.run`; a bad --config is one line, no traceback."""
  try:
    configs.check_fields(argv)
    words = app.parse_flags_with_usage(configs.named_configs(argv))
    if values := overrides.read_flags():
      overrides.check(flags.FLAGS['config'].value, values)
    return words
  except (OSError, ValueError) as error:
    raise SystemExit(f'error: {error}') from error


def run(
  main: Callable[[Sequence[str]], object],
  *errors: type[Exception],
  compiles: bool = True,
  parser: Callable[[Sequence[str]], list[str]] | None = None,
) -> None:
  """Reads the flags of a command, calls it, and exits.

  Args:
    main: as in `call`.
    errors: as in `call`.
    compiles: whether compiled code is kept; False for what times or reads a
      compilation.
    parser: reads the flags; `parse` by default.
  """
  app.run(
    lambda argv: call(main, argv, *errors, compiles=compiles),
    flags_parser=parser or parse,
  )


def call(
  main: Callable[[Sequence[str]], object],
  argv: Sequence[str],
  *errors: type[Exception],
  compiles: bool = True,
) -> object:
  """Sets a command up, before it imports jax, and calls it.

  At a Ctrl-C that `main` does not answer, the process leaves with status 130.

  Args:
    main: takes the words of the command line that are no flags, the command's
      name first; returns the exit status, or None.
    argv: those words.
    errors: exceptions that one line tells, beside OSError and ValueError.
    compiles: as in `run`.

  Raises:
    SystemExit: one of the errors, as the line "error: …".
  """
  pool.end_with_parent()
  quiet()
  common = COMMON.read()
  if common.accept_field:
    fields.accept(common.accept_field)
  if not common.compilation_cache:
    os.environ[_CACHE_USED] = 'false'  # For the commands that this one starts.
  elif compiles:
    keep_compiled()
  try:
    with abortable():
      return main(argv)
  except (OSError, ValueError, *errors) as error:
    raise SystemExit(f'error: {error}') from error


def quiet() -> None:
  """Hides the libraries' log messages unless the user sets --verbosity."""
  if not flags.FLAGS['verbosity'].present:
    logging.set_verbosity(logging.WARNING)


def keep_compiled() -> None:
  """Makes JAX keep compiled code in the user's cache folder.

  It sets environment variables, which jax reads at its import and child
  processes inherit. Variables that are already set stay. An entry belongs to
  one program, JAX version, set of XLA flags and device. The folder may be
  deleted at any time.
  """
  if _CACHE_FOLDER in os.environ:
    return
  cache = folders.user_cache()
  if cache is None:
    return
  os.environ[_CACHE_FOLDER] = str(cache)
  os.environ.setdefault(_CACHE_SECONDS, '0')


@contextlib.contextmanager
def abortable() -> Iterator[None]:
  """Ends the process at once, with status 130, at an unhandled Ctrl-C.

  An ordinary exit would wait for all threads, and these for a step or a save.
  """
  try:
    yield
  except KeyboardInterrupt:
    print('Aborted.', file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)
