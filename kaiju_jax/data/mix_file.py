"""Writes and reads mix.json, a file of a mixture's sources and their weights.

    {
      "sources": [{"name": "code", "path": "data/code", "weight": 0.7}, …],
      "target": "data/exam", "method": "em", …
    }

Training reads only `sources`: the fields of `data/config.SourceConfig`, where
`anneal` may be absent. All other keys are the account of how the weights were
found, for people and reports. Paths are as in `data.path`: relative ones start
at the folder in which a command runs.

`data.mix` names such a file. A run reads it once, when it starts or resumes,
and stores the sources in its workdir's config.json. The file may then be
deleted. A resumed run refuses a file whose weights have changed.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any

from kaiju_jax.data import config as data_config
from kaiju_jax.storage import files
from kaiju_jax.storage import strict

SOURCES = 'sources'


def write(
  path: str | os.PathLike[str],
  sources: Sequence[data_config.SourceConfig],
  account: Mapping[str, Any],
) -> None:
  """Replaces a mix.json in one atomic step.

  `account` tells how the weights were found, as data that JSON can hold.

  Raises:
    ValueError: sources that a run would refuse, an account with the key
      `sources`, or a number in it that is not finite.
    OSError: the file cannot be written.
  """
  data_config.check_sources(sources)
  if SOURCES in account:
    raise ValueError(f'{path}: the account must not have a key {SOURCES!r}.')
  data = {SOURCES: [strict.dump(one) for one in sources], **account}
  files.write_json(pathlib.Path(path), data)


def read(path: str | os.PathLike[str]) -> tuple[data_config.SourceConfig, ...]:
  """Returns the sources of a mix.json.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is not JSON, holds no sources, or one of them has a field
      that is unknown, missing, ill-typed or out of range.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(
      f'{path}: no such file; expected the mix.json that experiments.mix'
      ' writes.'
    )
  data = files.read_json(path)
  listed = data.get(SOURCES) if isinstance(data, Mapping) else None
  if not isinstance(listed, list) or not listed:
    raise ValueError(
      f'{path}: holds no list "{SOURCES}" of objects with name, path and'
      ' weight.'
    )
  try:
    found = tuple(
      strict.parse(data_config.SourceConfig, one, f'{SOURCES}[{index}]')
      for index, one in enumerate(listed)
    )
    data_config.check_sources(found)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return found


def resolve(config: data_config.DataConfig) -> data_config.DataConfig:
  """Returns the config with the sources of `config.mix`, which becomes ''.

  If the config has sources of its own, the file must name the same ones. Their
  weights then come from the file, and everything else from the config.

  Raises:
    OSError, ValueError: see `read`; or the file names other sources. Errors
      name `data.mix`.
  """
  if not config.mix:
    return config
  try:
    found = read(config.mix)
  except (OSError, ValueError) as error:
    raise type(error)(f'data.mix={config.mix!r}: {error}') from error
  if config.sources:
    found = _reweight(config, found)
  return dataclasses.replace(config, sources=found, mix='')


def _reweight(
  config: data_config.DataConfig, found: Sequence[data_config.SourceConfig]
) -> tuple[data_config.SourceConfig, ...]:
  weights = {one.name: one.weight for one in found}
  names = [one.name for one in config.sources]
  if sorted(names) != sorted(weights):
    raise ValueError(
      f'data.mix={config.mix!r}: names the sources {", ".join(weights)}, and'
      f' data.sources {", ".join(names)}; both must name the same.'
    )
  return tuple(
    dataclasses.replace(one, weight=weights[one.name]) for one in config.sources
  )
