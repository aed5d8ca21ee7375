"""Defines the flags of a command from the fields of a dataclass.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
      # A workdir, an export or a Hugging Face folder.
      model: str
      # Prompt tokens of a round.
      chunk: flags.Positive = 256

    FLAGS = flags.flags_of(Settings)

    def main(argv):
      settings = FLAGS.read(argv)

The comment above a field is the flag's help, a sentence; 'With --NAME: …' says
that the flag has an effect beside that one alone. A field without a default
must be given on the command line. The types are

    bool, int, float, str   a flag of that type; `Bounds` limit a number
    Literal['a', 'b']       one of these words
    tuple[str, ...]         words between commas; with `Literal`, of a known set
    tuple[int, ...]         numbers between commas; `Numbers` limits them
    Repeated                a text for each time that the flag is given
    Experiment              a config's name or path, with --config.FIELD=VALUE
    Parsed                  a text that a function reads, such as 2GiB
    a dataclass, a          its fields, with its own defaults; `Prefix` renames
      NamedTuple

and `X | None` for a value that may be absent. A field's trailing underscore,
which a word of Python needs, is no part of the flag's name.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import functools
import inspect
import math
import pathlib
import re
import types
import typing
from typing import Annotated
from typing import Any
from typing import Generic
from typing import Literal
from typing import NamedTuple
from typing import TypeVar

from absl import app
from absl import flags

from kaiju_jax.runs import configs
from kaiju_jax.storage import addresses
from kaiju_jax.training import experiment as experiment_lib

# absl then counts a flag as the caller's, whose --help lists it.
flags.disclaim_key_flags()
T = TypeVar('T')
_FIELD = re.compile(r'\s*(\w+):')


class Bounds(NamedTuple):
  """The bounds of a number; `above` and `below` exclude the bound itself."""

  least: float | None = None
  most: float | None = None
  above: float | None = None
  below: float | None = None


class Numbers(NamedTuple):
  """The bounds of a list of numbers, which is read rising, each once."""

  least: int = 1  # How many different ones there must be.
  why: str = 'at least one is needed'  # The reason for `least`.
  below: float = math.inf  # What each must be less than; all must be above 0.


class Prefix(NamedTuple):
  """What stands before the flags of a nested dataclass."""

  text: str


class Parsed(NamedTuple):
  """A value that a text says, such as 2GiB; no text is None."""

  # Takes the text and the flag, `--name`; returns the value.
  read: Callable[[str, str], Any]
  show: Callable[[Any], str] = str  # Takes the value; returns the text.


class Config(NamedTuple):
  """The config that an `Experiment` is read from by default."""

  name: str


_SEEDS, _REPEATED = 'seeds', 'repeated'
Positive = Annotated[int, Bounds(1)]
NonNegative = Annotated[int, Bounds(0)]
Share = Annotated[float, Bounds(0.0, 1.0)]
# Of a claim about both age tiers.
Confidence = Annotated[float, Bounds(0.95, below=1.0)]
Seeds = Annotated[tuple[int, ...], _SEEDS]
Repeated = Annotated[tuple[str, ...], _REPEATED]


class _Kind(NamedTuple):
  """A field's type, without `| None`, and what `Annotated` adds to it."""

  base: Any
  notes: tuple

  def note(self, kind: type[T]) -> T | None:
    return next((x for x in self.notes if isinstance(x, kind)), None)


# Begins the comment of a flag that another one, or its value, turns on.
_RULER = re.compile(r'With (--(\w+)(?:=(\w+))?):')


class _Value(NamedTuple):
  """A flag of one field."""

  flag: flags.FlagHolder
  kind: _Kind
  is_needed: bool
  comment: str


class Flags(Generic[T]):
  """The flags of a dataclass; `flags_of` defines them."""

  def __init__(self, settings: type[T], parts: dict[str, 'Flags | _Value']):
    self._settings, self._parts = settings, parts

  def read(self, argv: Sequence[str] = ()) -> T:
    """Returns the settings that the command line names.

    Args:
      argv: the words that are no flags, the command's name first.

    Raises:
      app.UsageError: there are such words, or a needed flag is missing;
        `app.run` prints the message with the command's help.
      ValueError: names a flag, its value and what would be right.
    """
    if len(argv) > 1:
      raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
    self._need()
    self._refuse_without_ruler()
    return self._settings(
      **{
        name: part.read() if isinstance(part, Flags) else _read(part)
        for name, part in self._parts.items()
      }
    )

  def list_given(self) -> set[str]:
    """Returns the names of the flags that the command line has."""
    return {one.flag.name for one in self._values() if one.flag.present}

  def refuse_beside(self, ruler: str, *ruled: str) -> None:
    """Refuses flags that have no effect beside another one.

    Raises:
      ValueError: names both.
    """
    given = {one.flag.name: one.flag for one in self._values()}
    for name in ruled:
      if given[ruler].present and given[name].present:
        raise ValueError(
          f'--{name}={given[name].value}: has no effect with --{ruler}, which'
          ' determines it.'
        )

  def _refuse_without_ruler(self) -> None:
    """Refuses flags that another one turns on (`_RULER`), where it does not."""
    given = {one.flag.name: one.flag for one in self._values()}
    for one in self._values():
      found, flag = _RULER.match(one.comment), one.flag
      if not (found and flag.present and found[2] in given):
        continue
      value = given[found[2]].value
      if not value or found[3] not in (None, value):
        raise ValueError(
          f'--{flag.name}={flag.value}: has no effect without {found[1]}.'
        )

  def _values(self) -> Iterable[_Value]:
    for part in self._parts.values():
      yield from part._values() if isinstance(part, Flags) else (part,)

  def _need(self) -> None:
    for one in self._values():
      if one.is_needed:
        need(**{one.flag.name: one.flag.value})


def flags_of(
  settings: type[T] | T,
  prefix: str = '',
  values: flags.FlagValues = flags.FLAGS,
) -> Flags[T]:
  """Defines the flags of a dataclass.

  Args:
    settings: the dataclass, or an instance, whose values are the defaults.
    prefix: stands before all names.
    values: the table of flags.
  """
  kind = settings if isinstance(settings, type) else type(settings)
  hints = typing.get_type_hints(kind, include_extras=True)
  comments = _comments(kind)
  parts = {}
  for name, default in _defaults(settings, kind):
    found = _kind_of(hints[name])
    if _is_record(found.base) and found.base is not _EXPERIMENT:
      more = found.note(Prefix)
      own = found.base if default is dataclasses.MISSING else default
      before = prefix + (more.text if more else '')
      parts[name] = flags_of(own, before, values)
      continue
    is_needed = default is dataclasses.MISSING
    comment = comments.get(name, '')
    parts[name] = _Value(
      _define(
        prefix + name.rstrip('_'),
        found,
        None if is_needed else default,
        comment,
        values,
      ),
      found,
      is_needed,
      comment,
    )
  return Flags(kind, parts)


_EXPERIMENT = experiment_lib.Experiment


def _is_record(kind: Any) -> bool:
  """Returns whether a type is a dataclass or a NamedTuple."""
  return dataclasses.is_dataclass(kind) or hasattr(kind, '_field_defaults')


def _defaults(settings: Any, kind: type) -> Iterable[tuple[str, Any]]:
  """Yields fields and defaults; MISSING where there is none."""
  missing = dataclasses.MISSING
  if not dataclasses.is_dataclass(kind):
    for name in kind._fields:
      default = kind._field_defaults.get(name, missing)
      yield name, default if kind is settings else getattr(settings, name)
    return
  for field in dataclasses.fields(kind):
    default = getattr(settings, field.name, field.default)
    if field.default_factory is not missing and kind is settings:
      default = field.default_factory()
    yield field.name, default


def _kind_of(hint: Any) -> _Kind:
  """Returns a type hint's type and annotations."""
  notes = ()
  while True:
    origin = typing.get_origin(hint)
    if origin is Annotated:
      hint, *more = typing.get_args(hint)
      notes += tuple(more)
    elif origin in (typing.Union, types.UnionType):
      hint, *_ = (x for x in typing.get_args(hint) if x is not type(None))
    else:
      return _Kind(hint, notes)


def _define(
  name: str, kind: _Kind, default: Any, text: str, values: flags.FlagValues
) -> flags.FlagHolder:
  """Defines one flag."""
  about = {'name': name, 'default': default, 'help': text}
  about['flag_values'] = values
  origin = typing.get_origin(kind.base)
  if parsed := kind.note(Parsed):
    text = '' if default is None else parsed.show(default)
    return flags.DEFINE_string(**about | {'default': text})
  if kind.base is _EXPERIMENT:
    config = kind.note(Config)
    path = configs.config_path(config.name) if config else None
    return configs.define(name, path, text, values)
  if origin is Literal:
    words = typing.get_args(kind.base)
    return flags.DEFINE_enum(**about, enum_values=words)
  if origin is tuple and _REPEATED in kind.notes:
    return flags.DEFINE_multi_string(**about | {'default': default or None})
  if origin is tuple:
    words = None if default is None else [_word(x) for x in default]
    return flags.DEFINE_list(**about | {'default': words})
  bounds = kind.note(Bounds) or Bounds()
  limits = {'lower_bound': bounds.least, 'upper_bound': bounds.most}
  if kind.base is int:
    return flags.DEFINE_integer(**about, **limits)
  if kind.base is float:
    return flags.DEFINE_float(**about, **limits)
  if kind.base is bool:
    return flags.DEFINE_bool(**about)
  return flags.DEFINE_string(**about)


def _word(value: Any) -> str:
  return f'{value:g}' if isinstance(value, float) else str(value)


def _read(one: _Value) -> Any:
  """Returns a flag's value as its field has it."""
  name, value = one.flag.name, one.flag.value
  if parsed := one.kind.note(Parsed):
    return parsed.read(value, f'--{name}') if value else None
  if typing.get_origin(one.kind.base) is not tuple:
    _check(name, value, one.kind.note(Bounds))
    return value
  if _SEEDS in one.kind.notes:
    return _seeds(name, value)
  if value is None:
    return () if _REPEATED in one.kind.notes else None
  kind = typing.get_args(one.kind.base)[0]
  if typing.get_origin(kind) is Literal:
    return tuple(choose(name, value, typing.get_args(kind)))
  if kind in (int, float):
    return _numbers(name, value, kind, one.kind.note(Numbers) or Numbers())
  return tuple(value)


def _check(name: str, value: Any, bounds: Bounds | None) -> None:
  """Refuses a number at an excluded bound, or beyond it."""
  if bounds is None or value is None:
    return
  above, below = bounds.above, bounds.below
  if (above is None or value > above) and (below is None or value < below):
    return
  limits = [f'above {above:g}'] if above is not None else []
  limits += [f'at least {bounds.least:g}'] if bounds.least is not None else []
  limits += [f'below {below:g}'] if below is not None else []
  limits += [f'at most {bounds.most:g}'] if bounds.most is not None else []
  raise ValueError(f'--{name}={value}: must be {" and ".join(limits)}.')


def _seeds(name: str, words: Sequence[str]) -> tuple[int, ...]:
  """Returns seeds in the given order."""
  for text in words:
    if not (text.isascii() and text.isdigit()):
      raise ValueError(
        f'--{name}: {text!r} is not a non-negative integer; write 0,1,2.'
      )
  if not words:
    raise ValueError(f'--{name} needs at least one.')
  seeds = tuple(map(int, words))
  if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
    raise ValueError(f'--{name}={",".join(words)}: has {twice[0]} twice.')
  return seeds


def _numbers(
  name: str, words: Sequence[str], kind: Callable, bounds: Numbers
) -> tuple:
  """Returns numbers, rising, each once."""
  found = set()
  for text in words:
    try:
      value = kind(text)
    except ValueError:
      value = 0
    if not 0 < value < bounds.below:
      known = 'whole number' if kind is int else 'number'
      end = '' if bounds.below == math.inf else f' below {bounds.below:g}'
      raise ValueError(f'--{name}: {text!r} is not a positive {known}{end}.')
    found.add(value)
  if len(found) < bounds.least:
    raise ValueError(f'--{name}={",".join(words)}: {bounds.why}.')
  return tuple(sorted(found))


def parse_known(argv: Sequence[str]) -> list[str]:
  """Reads the known flags, as `app.run` does; returns the other words."""
  return flags.FLAGS(argv, known_only=True)


def need(**values: Any) -> None:
  """Refuses flags without a value: `app.UsageError`. Takes {name: value}."""
  for name, value in values.items():
    if value in (None, '', [], ()):
      raise app.UsageError(f'--{name} is missing.')


def choose(
  name: str, words: Sequence[str] | None, known: Iterable[str]
) -> list[str]:
  """Returns the words of a list flag, each once; all `known` ones for None."""
  known = list(dict.fromkeys(known))
  words = known if words is None else words
  for word in words:
    if word not in known:
      raise ValueError(f'--{name}: {word!r} is not one of {", ".join(known)}.')
  if not words:
    raise ValueError(f'--{name} needs at least one.')
  return list(dict.fromkeys(words))


def folder(name: str, text: str | None) -> pathlib.Path:
  """Returns the folder that a flag names; it need not exist.

  Raises:
    ValueError: it names none, or an address.
  """
  if not text:
    raise ValueError(f'--{name}=: must name a folder.')
  refuse_address(name, text)
  return pathlib.Path(text)


def refuse_address(name: str, text: str | None) -> None:
  """Refuses an address, such as gs://, as the path of a file to write."""
  if text:
    addresses.refuse(text, f'--{name}={text}')


@functools.cache
def _comments(kind: type) -> dict[str, str]:
  """Returns {field: the comment above it}; none where there is no source."""
  found = {}
  for one in reversed(kind.__mro__):
    if not _is_record(one):
      continue
    try:
      lines = inspect.getsource(one).splitlines()
    except (OSError, TypeError):
      continue
    words = []
    for line in lines:
      if line.lstrip().startswith('#'):
        words.append(line.strip().lstrip('# '))
        continue
      if words and (field := _FIELD.match(line)):
        found[field[1]] = ' '.join(words)
      words = []
  return found
