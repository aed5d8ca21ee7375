"""Shared parts of all commands: flags, quiet libraries, Ctrl-C, compiled code.

Importing this module defines the flags --compilation_cache and --accept_field,
so only commands import it.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import math
import os
import pathlib
import sys
import time

from absl import app
from absl import flags
from absl import logging

from kaiju_jax.interchange import fields
from kaiju_jax.runs import configs
from kaiju_jax.runs import flags as flags_lib
from kaiju_jax.runs import overrides
from kaiju_jax.storage import addresses


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
# absl then counts flags that a function here defines as its caller's flags.
flags.disclaim_key_flags()
_CLOCKS = {'wall': time.perf_counter, 'processor': time.process_time}
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


def check(argv: Sequence[str], *needed: flags.FlagHolder) -> None:
  """Refuses words that are no flags, and needed flags without a value.

  Raises:
    app.UsageError: names the words or the flag; `app.run` prints the message
      with the command's help.
  """
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  for flag in needed:
    if flag.value in (None, '', []):
      raise app.UsageError(f'--{flag.name} is missing.')


def refuse_beside(ruler: flags.FlagHolder, *ruled: flags.FlagHolder) -> None:
  """Refuses flags that have no effect beside another one.

  Raises:
    ValueError: names both.
  """
  for flag in ruled:
    if ruler.value is not None and flag.present:
      raise ValueError(
        f'--{flag.name}={flag.value}: has no effect with --{ruler.name}, which'
        ' determines it.'
      )


def define_seeds(default: str = '0', text: str = 'Seeds of the runs.'):
  """Defines the flag --seeds, a list; `seeds` reads it."""
  return flags.DEFINE_list('seeds', default.split(','), text)


def seeds(flag: flags.FlagHolder) -> list[int]:
  """Returns the seeds that --seeds lists, without repetitions.

  Raises:
    ValueError: there is none, or one is no integer of 0 or more.
  """
  for text in flag.value:
    if not (text.isascii() and text.isdigit()):
      raise ValueError(
        f'--seeds: {text!r} is not a non-negative integer; write 0,1,2.'
      )
  if not flag.value:
    raise ValueError('--seeds needs at least one.')
  return list(dict.fromkeys(map(int, flag.value)))


def define_clock(default: str):
  """Defines the flag --clock; `clock` reads it."""
  return flags.DEFINE_enum(
    'clock',
    default,
    list(_CLOCKS),
    'Seconds of what; of the processor where others use the machine too.',
  )


def clock(flag: flags.FlagHolder) -> Callable[[], float]:
  """Returns what --clock names, a function that returns seconds."""
  return _CLOCKS[flag.value]


def numbers(
  flag: flags.FlagHolder,
  kind: type,
  least: int = 1,
  why: str = 'at least one is needed',
  below: float = math.inf,
) -> list:
  """Returns the numbers that a list flag holds, rising, each once.

  Args:
    flag: the list.
    kind: int or float.
    least: how many different ones there must be.
    why: the reason for `least`.
    below: what each must be less than; all must be above 0.

  Raises:
    ValueError: one of them is not such a number, or they are too few.
  """
  found = set()
  for text in flag.value:
    try:
      value = kind(text)
    except ValueError:
      value = 0
    if not 0 < value < below:
      known = 'whole number' if kind is int else 'number'
      end = '' if below == math.inf else f' below {below:g}'
      raise ValueError(
        f'--{flag.name}: {text!r} is not a positive {known}{end}.'
      )
    found.add(value)
  if len(found) < least:
    raise ValueError(f'--{flag.name}={",".join(flag.value)}: {why}.')
  return sorted(found)


def choose(flag: flags.FlagHolder, known: Iterable[str]) -> list[str]:
  """Returns the words that a list flag holds, each once; all for None.

  Raises:
    ValueError: one is not `known`, or there is none.
  """
  known = list(dict.fromkeys(known))
  words = known if flag.value is None else flag.value
  for word in words:
    if word not in known:
      raise ValueError(
        f'--{flag.name}: {word!r} is not one of {", ".join(known)}.'
      )
  if not words:
    raise ValueError(f'--{flag.name} needs at least one.')
  return list(dict.fromkeys(words))


def folder(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the folder that a flag names; it need not exist.

  Raises:
    ValueError: it names none, or an address.
  """
  if not flag.value:
    raise ValueError(f'--{flag.name}=: must name a folder.')
  addresses.refuse(flag.value, f'--{flag.name}={flag.value}')
  return pathlib.Path(flag.value)


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
  try:
    home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  except RuntimeError:  # There is no home folder.
    return
  os.environ[_CACHE_FOLDER] = str(pathlib.Path(home) / 'kaiju_jax')
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
