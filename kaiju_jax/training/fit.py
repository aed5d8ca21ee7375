"""Checks that a mesh can split an experiment; imports no jax."""

from kaiju_jax.model import config as model_config
from kaiju_jax.sharding import config as sharding_config
from kaiju_jax.training import experiment as experiment_lib
from kaiju_jax.wire import codec

_GROUP = 8


def check(
  experiment: experiment_lib.Experiment, mesh: sharding_config.MeshConfig
) -> None:
  """Refuses a model or rows that a mesh cannot split into equal parts.

  Raises:
    ValueError: names the field, the axis and both values.
  """
  sharding_config.check(mesh)
  model, data = experiment.model, experiment.data
  if model.quantization.matmul == 'weights':
    raise ValueError(
      "model.quantization.matmul='weights': must be 'int8' or 'none' to train,"
      ' because such products have no gradient for their weights.'
    )
  for field, value, axis in (
    ('data.batch', data.batch, 'fsdp'),
    ('model.d_model', model.d_model, 'fsdp'),
    ('data.length', data.length, 'tensor'),
  ):
    width = getattr(mesh, axis)
    if value % width:
      raise ValueError(
        f'{field}={value}: does not divide over mesh.{axis}={width}.'
      )
  model_config.check_tensor(model, mesh.tensor)
  squinched = codec.choose(model.quantization).kind == 'squinch'
  share = model.d_model // mesh.fsdp
  if squinched and mesh.fsdp > 1 and share % _GROUP:
    raise ValueError(
      f'model.d_model={model.d_model} over mesh.fsdp={mesh.fsdp} leaves'
      f' {share} rows to an owner: Squinch takes them in groups of {_GROUP}, so'
      f' d_model must be a multiple of {_GROUP * mesh.fsdp}'
      " (or model.quantization.wire_gradients='float')."
    )
