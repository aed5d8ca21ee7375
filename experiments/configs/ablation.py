"""What makes int8 QKᵀ train: Z-Reg, clamping, Bungee, and the learning rate?

In 2023 and 2024 others reported that int8 attention logits do not converge, and
left them out (google/maxtext#253, google/paxml#71). Since then SageBwd (arXiv
2505.11594) has trained with 8-bit attention. A 7-layer byte model on the Python
installation's prose and code, each arm at the normal learning rate and, with
the suffix `_fast`, at one four times as high.

    bf16       nothing quantized, no Z-Reg: the baseline
    bf16_z     with Attention Z-Reg
    int8       projections and KV in int8, QKᵀ on dequantized keys, unclamped
    int8_qk    QKᵀ in int8 as well ("half-int8")
    int8_qk_z  and Z-Reg
    int8_qk_mean  and Z-Reg on the mean logit, the sources' other reading
    int8_qk_clamp  and dynamic clamping instead
    kaiju      int8 QKᵀ, Z-Reg, clamping
    kaiju_bungee  and Bungee scalars

    python -m experiments.ablate --config=ablation \\
      --out=runs/ablation --seeds=0,1 --jobs=3 --config.loop.steps=200

Device:   4 shared cores of a CPU, three runs at a time
Minutes:  65–85 seconds per run of 200 steps, 36 runs
Result:   all of them train: int8 QKᵀ is 0.02 % above bf16 in training loss,
          0.12 % at the high rate, and needs none of the remedies. Z-Reg on the
          lse brings its rms from 27 to 0.75 at the high rate, at 0.5 % of
          training loss; Bungee brings nothing (`experiments/results/int8.md`).
"""

from kaiju_jax.data import config as data_config
from kaiju_jax.model import config as model_config
from kaiju_jax.quantization import config as quantization_config
from kaiju_jax.training import config as training_config
from kaiju_jax.training import experiment as experiment_lib

_NORMAL = 2.5e-3
_FAST = 1e-2

_TECHNIQUES = {
  'bf16': {'matmul': 'none', 'kv': 'none', 'qk': 'none'},
  'bf16_z': {'matmul': 'none', 'kv': 'none', 'qk': 'none', 'z': 'lse'},
  'int8': {'qk': 'none'},
  'int8_qk': {},
  'int8_qk_z': {'z': 'lse'},
  'int8_qk_mean': {'z': 'mean_logit'},
  'int8_qk_clamp': {'clamp': True},
  'kaiju': {'z': 'lse', 'clamp': True},
  'kaiju_bungee': {'z': 'lse', 'clamp': True, 'bungee': True},
}
# Each arm's baseline is bf16 at its own learning rate.
ARMS = {arm: 'bf16' for arm in _TECHNIQUES} | {
  f'{arm}_fast': 'bf16_fast' for arm in _TECHNIQUES
}


def get_config(arm: str = 'kaiju') -> experiment_lib.Experiment:
  """Returns an arm's experiment.

  Args:
    arm: one of ARMS.

  Raises:
    ValueError: no such arm.
  """
  experiment_lib.check_arm(arm, ARMS)
  technique = dict(_TECHNIQUES[arm.removesuffix('_fast')])
  z = technique.pop('z', None)
  clamp = technique.pop('clamp', False)
  quantization = quantization_config.QuantizationConfig(
    clamp_hidden='weight_rms' if clamp else 'none',
    clamp_input='input_std' if clamp else 'none',
    **technique,
  )
  return experiment_lib.Experiment(
    model=model_config.ModelConfig(
      d_model=96,
      num_layers=7,
      num_heads=3,
      head_dim=32,
      d_ff=384,
      max_length=256,
      window=64,
      quantization=quantization,
    ),
    data=data_config.DataConfig(length=256, batch=8),
    optimizer=training_config.OptimizerConfig(
      learning_rate=_FAST if arm.endswith('_fast') else _NORMAL,
      z_reg=training_config.ZRegConfig(
        attention=1e-3 if z else 0.0,
        logits=1e-4 if z else 0.0,
        target=z or 'lse',
      ),
    ),
    loop=training_config.LoopConfig(
      steps=400, log_every=5, checkpoint_every=400
    ),
  )
