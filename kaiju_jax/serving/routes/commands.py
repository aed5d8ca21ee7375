"""The fields of operators' commands (`operations.py`)."""

from typing import Annotated

import pydantic

from kaiju_jax.serving.routes import parsing
from kaiju_jax.serving.routing import rollout

_Name = Annotated[
  str, pydantic.StringConstraints(min_length=1, max_length=4096)
]
_Share = Annotated[float, pydantic.Field(ge=0, le=1)]
_Seconds = Annotated[float, pydantic.Field(ge=0, le=24 * 3600)]
# A drain ends within two minutes (source 003), with what is moved afterwards.
_DRAINS = 100.0


class Gate(parsing.Fields):
  """Serves a folder's gate and thresholds."""

  folder: Annotated[_Name, pydantic.StringConstraints(pattern=r'^[^\x00]+$')]


class GateRollback(parsing.Fields):
  """Serves the gate before; `served` is the id that is to go."""

  served: _Name


class Which(parsing.Fields):
  """Names a replica, or the first digits of a build."""

  of: _Name


class Share(Which):
  """Sets to which part of new conversations replicas are open."""

  share: _Share


class Drain(Which):
  """Takes a replica's conversations off it; `seconds` for running replies."""

  seconds: Annotated[float, pydantic.Field(ge=0, le=_DRAINS)] = 60.0


class Rollout(Which):
  """Warms replicas, and opens them by steps; `hold` seconds each.

  With `replaces` the others close to new conversations at the end. `requests`
  is how many each step is judged by.
  """

  hold: _Seconds = rollout.Plan.hold
  requests: Annotated[int, pydantic.Field(ge=0)] = rollout.Plan.requests
  replaces: bool = False
