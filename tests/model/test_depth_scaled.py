"""The initialization in which layers write little: only they are smaller."""

import jax
import numpy as np
import pytest

from kaiju_jax.model import config as model_config
from kaiju_jax.model import depth_scaled


def test_writing_projections_alone_are_divided_by_the_root_of_their_number():
  config = model_config.ModelConfig(layout='L0 L0 L2 L2 L0 L2 G6 G6')
  attention = {'w_q_DHK': np.ones(2), 'w_o_DHK': np.ones(3)}
  params = {
    'embedding': {'embedding_DV': np.ones(4)},
    'blocks': {
      'layer_0': {
        'attention': attention,
        'feedforward': {'w_in_DF': np.ones(2), 'w_out_DF': np.ones(2)},
      }
    },
  }
  scaled = depth_scaled.scale(params, config)
  sizes = {
    path[-1].key: leaf[0]
    for path, leaf in jax.tree_util.tree_leaves_with_path(scaled)
  }
  # Eight layers write sixteen times.
  assert sizes == {
    'embedding_DV': 1, 'w_q_DHK': 1, 'w_in_DF': 1,
    'w_o_DHK': pytest.approx(1 / 4), 'w_out_DF': pytest.approx(1 / 4),
  }  # fmt: skip
