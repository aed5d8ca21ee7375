"""The plan of ternary updates: the ternary weights and each one's layout.

Both follow from a weight's name. For example, owners hold parts of D of
`w_in_DF`, and its matmul sums over D, so each hidden unit's channel has a part
in every shard. For a tree with other names the caller makes `Layout`s by hand.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any
from typing import NamedTuple

from flax import traverse_util
import jax
import jax.numpy as jnp

from kaiju_jax.quantization import int8
from kaiju_jax.sharding import rules


class State(NamedTuple):
  """Replicas, equal on every device; keys are the weights' dotted paths."""

  codes: dict[str, jax.Array]  # int8, D whole.
  scales: dict[str, jax.Array]  # float32; contracted axes have size 1.


@dataclasses.dataclass(frozen=True)
class Layout:
  """The layout of one weight over the mesh."""

  owned: int  # The dimension that the owners split.
  contracted: tuple[int, ...]  # The dimensions that share a scale.
  # Whether the mesh axis within a node splits a contracted dimension.
  split: bool = False
  # Whether that axis splits a dimension that is not contracted, so that each of
  # its devices has different channels.
  parted: bool = False

  @property
  def is_shared(self) -> bool:
    """Whether a channel has a part in every owner's shard."""
    return self.owned in self.contracted


@dataclasses.dataclass(frozen=True)
class Plan:
  """The ternary weights and the settings of their updates."""

  # By the weight's dotted path; made by `layouts`, or by hand.
  layouts: Mapping[str, Layout]
  least_scale: float  # The finest scale of a grid; see `grid.no_lag_scale`.
  check_every: int = 100  # Steps between checksums.
  events_every: int = 4  # Steps between scale events.
  axis: str = 'fsdp'  # Mesh axis of the owners.
  # Mesh axis that splits F and H, or None. Each of its devices holds a part of
  # the codes; a channel that it splits keeps one scale.
  within: str | None = 'tensor'

  def __post_init__(self) -> None:
    if not (self.least_scale > 0 and math.isfinite(self.least_scale)):
      raise ValueError(
        f'least_scale={self.least_scale}: must be positive;'
        ' grid.no_lag_scale says which one never lags.'
      )
    for name in ('check_every', 'events_every'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name}={getattr(self, name)}: must be at least 1.')
    if not self.layouts:
      raise ValueError(
        'no ternary weights: there is none named'
        f' {", ".join(rules.CONTRACTED)} among the parameters.'
      )


def layouts(params: Any, embedding: bool = False) -> dict[str, Layout]:
  """Returns the layout of every int8 weight, derived from its name.

  Args:
    params: the model's parameters or their shapes; weights may be stacked.
    embedding: whether the vocabulary's tables are int8 too.

  Raises:
    ValueError: a weight's rank does not match its name.
  """
  found = {}
  for path, w in traverse_util.flatten_dict(params, sep='.').items():
    name = path.rpartition('.')[2]
    if name not in rules.CONTRACTED:
      continue
    letters = rules.letters_of(name)
    if 'V' in letters and not embedding:
      continue
    axes = rules.spec(name, len(w.shape), rules.STORED)
    stacked = len(w.shape) - len(letters)
    contracted = tuple(
      stacked + letters.index(letter) for letter in rules.CONTRACTED[name]
    )
    within = axes.index('tensor') if 'tensor' in axes else None
    found[path] = Layout(
      owned=axes.index('fsdp'),
      contracted=contracted,
      split=within in contracted,
      parted=within is not None and within not in contracted,
    )
  return found


def shapes(plan: Plan, params: Any) -> State:
  """Returns the state's shapes over the whole mesh; `params` may be shapes."""
  codes, scales = {}, {}
  for path, w in weights_of(plan, params).items():
    contracted = plan.layouts[path].contracted
    of_scales = [1 if i in contracted else n for i, n in enumerate(w.shape)]
    codes[path] = jax.ShapeDtypeStruct(w.shape, jnp.int8)
    scales[path] = jax.ShapeDtypeStruct(tuple(of_scales), jnp.float32)
  return State(codes, scales)


def specs(plan: Plan, params: Any) -> State:
  """Returns the state's `PartitionSpec`s, for shard_map and for storage."""
  return specs_of(shapes(plan, params))


def specs_of(tree: Any) -> Any:
  """Returns the `PartitionSpec`s of replicas, derived from their names.

  Args:
    tree: a `State`, its `collections`, or shapes of these, over the whole mesh.
  """

  def of(path, x):
    name = rules.name_of(path).rpartition('.')[2]
    axes = rules.spec(name, len(x.shape), rules.IN_USE)
    # A dimension of 1 is a contracted one of scales, the same for all devices.
    return rules.trim(
      [axis if n > 1 else None for axis, n in zip(axes, x.shape)]
    )

  return jax.tree_util.tree_map_with_path(of, tree)


def collections(state: State | None) -> dict[str, Any]:
  """Returns the collections that the model reads beside its parameters.

  They are {'replica': …}, or {} if the state is None, as in all other modes.
  """
  if state is None:
    return {}
  held = {
    path: int8.Quantized(codes, state.scales[path])
    for path, codes in state.codes.items()
  }
  return {'replica': traverse_util.unflatten_dict(held, sep='.')}


def weights_of(plan: Plan, params: Any) -> dict[str, jax.Array]:
  """Returns the ternary weights among `params`, by path.

  Raises:
    ValueError: a weight of the plan is missing.
  """
  flat = traverse_util.flatten_dict(params, sep='.')
  if missing := sorted(plan.layouts.keys() - flat.keys()):
    raise ValueError(
      f'the plan is of other parameters: {", ".join(missing)} is not among'
      f' {", ".join(sorted(flat))}.'
    )
  return {path: flat[path] for path in plan.layouts}


def share(
  shape: tuple[int, ...], layout: Layout, owners: int
) -> tuple[int, ...]:
  """Returns the shape of one owner's part; a dimension of 1 is not split."""
  return tuple(
    size // owners if i == layout.owned and size > 1 else size
    for i, size in enumerate(shape)
  )


def join(x: jax.Array, layout: Layout) -> jax.Array:
  """Joins owners' parts [owners, …] along the owned dimension."""
  x = jnp.moveaxis(x, 0, layout.owned)
  shape = list(x.shape)
  owners = shape.pop(layout.owned)
  shape[layout.owned] *= owners
  return x.reshape(shape)
