"""Lists every matmul of a compiled program: dtypes, operations, widened int8.

A matmul is a `dot` (often inside a fusion), a TPU's `convolution`, or a call of
cuBLAS. Each time it takes

    2 · size of the result · contracted numbers of the left operand

operations. The compiler *widened* a matmul of other dtypes whose two operands
are s8 codes that were only converted and moved (never scaled): it should have
been an s8 matmul. Kernels (Pallas, cuDNN) are opaque; `kernels` lists them by
name.
"""

from collections.abc import Iterable
import dataclasses
import math
import re

from kaiju_jax.aot.hlo import loops
from kaiju_jax.aot.hlo import text as text_lib

_CUBLAS = re.compile(r'custom_call_target="__cublas')
_KERNELS = re.compile(
  r'custom_call_target="(tpu_custom_call|__gpu\$xla\.gpu\.triton|mosaic_gpu'
  r'[^"]*|triton_kernel_call|__cudnn\$fmha[^"]*)"'
)
# Operations that move or convert numbers without changing their values.
_MOVES = (
  'convert',
  'copy',
  'bitcast',
  'transpose',
  'reshape',
  'broadcast',
  'slice',
  'dynamic-slice',
  'copy-done',
)


@dataclasses.dataclass(frozen=True)
class Matmul:
  """One matmul of a compiled program."""

  # Dtypes of its operands, as compiled.
  left: str
  right: str
  result: str  # Dtype of its result.
  operations: int  # Multiplications and additions, each time.
  times: int  # How often one call of the program runs it, loops multiplied in.
  # Whether `times` is exact. It is a lower bound where a loop's trip count
  # could not be read.
  is_sure: bool
  is_widened: bool  # Whether both operands were s8 codes and were converted.
  op_name: str  # Path of the JAX operation that made it.

  @property
  def dtypes(self) -> str:
    return f'{self.left}×{self.right}→{self.result}'

  @property
  def is_int8(self) -> bool:
    return self.left == self.right == 's8'

  @property
  def total(self) -> int:
    """Returns the operations of one device in one call of the program."""
    return self.times * self.operations


def read(module: text_lib.Module) -> tuple[Matmul, ...]:
  """Returns every matmul."""
  executions = loops.executions(module)
  found = []
  for name, times in executions.times.items():
    computation = module.computations[name]
    for x in computation.instructions.values():
      operations = _operations(computation, x)
      if operations is None:
        continue
      left, right = (
        computation.instructions[operand].arrays[0].dtype
        for operand in x.operands[:2]
      )
      found.append(
        Matmul(
          left=left,
          right=right,
          result=x.arrays[0].dtype,
          operations=operations,
          times=times,
          is_sure=name not in executions.unsure,
          is_widened=not left == right == 's8'
          and all(
            _came_as_s8(module, executions, name, operand)
            for operand in x.operands[:2]
          ),
          op_name=x.op_name,
        )
      )
  return tuple(found)


def totals(matmuls: Iterable[Matmul]) -> dict[str, int]:
  """Returns {'s8×s8→s32': operations of one device in one step}."""
  sums = {}
  for x in matmuls:
    sums[x.dtypes] = sums.get(x.dtypes, 0) + x.total
  return dict(sorted(sums.items(), key=lambda row: -row[1]))


def kernels(module: text_lib.Module) -> dict[str, int]:
  """Returns {kernel: calls} for opaque kernels."""
  calls = {}
  for name, times in loops.executions(module).times.items():
    for x in module.computations[name].instructions.values():
      found = _KERNELS.search(x.attributes)
      if found:
        calls[found.group(1)] = calls.get(found.group(1), 0) + times
  return calls


def _operations(computation, x) -> int | None:
  if x.opcode == 'dot':
    left = computation.instructions[x.operands[0]].arrays[0]
    dims = _ints(x.attribute('lhs_contracting_dims'))
    return 2 * x.arrays[0].size * math.prod(left.shape[d] for d in dims)
  if x.opcode == 'convolution':
    return _convolution(computation, x)
  if x.opcode == 'custom-call' and _CUBLAS.search(x.attributes):
    left = computation.instructions[x.operands[0]].arrays[0]
    found = re.search(
      r'"lhs_contracting_dimensions":\[([^\]]*)\]', x.attributes
    )
    dims = _ints(found.group(1).replace('"', ''))
    return 2 * x.arrays[0].size * math.prod(left.shape[d] for d in dims)
  return None


def _convolution(computation, x) -> int:
  """Counts a convolution's products, without those with padding.

  A TPU's compiler writes matmuls as convolutions, and a batch dimension as a
  spatial one.
  """
  left, kernel = (
    computation.instructions[name].arrays[0] for name in x.operands[:2]
  )
  left_names, rest = x.attribute('dim_labels').split('_')
  kernel_names, result_names = rest.split('->')
  result = x.arrays[0]
  window = x.attribute('window') or ''
  products = 1
  for place, name in enumerate(sorted(set(result_names) - set('bf'))):
    products *= _window_products(
      left.shape[left_names.index(name)],
      kernel.shape[kernel_names.index(name)],
      result.shape[result_names.index(name)],
      window,
      place,
    )
  for name in 'bf':
    products *= result.shape[result_names.index(name)]
  return 2 * products * kernel.shape[kernel_names.index('i')]


def _window_products(size, kernel, result, window, place) -> int:
  """Counts one dimension's pairs (result, kernel) that read no padding."""

  def of(name, default):
    found = re.search(rf'\b{name}=([\dx_\-]+)', window)
    return found.group(1).split('x')[place] if found else default

  stride, left, right = (
    int(of(name, '1')) for name in ('stride', 'lhs_dilate', 'rhs_dilate')
  )
  pad = int(of('pad', '0_0').partition('_')[0])
  reversed_ = of('rhs_reversal', '0') == '1'
  count = 0
  for out in range(result):
    for k in range(kernel):
      tap = kernel - 1 - k if reversed_ else k
      place_ = out * stride + tap * right - pad
      count += 0 <= place_ <= (size - 1) * left and place_ % left == 0
  return count


def _came_as_s8(module, executions, name: str, operand: str) -> bool:
  """Returns whether an operand is s8 codes, only converted and moved since."""
  x = module.computations[name].instructions[operand]
  if x.arrays and x.arrays[0].dtype == 's8':
    return True
  if x.opcode == 'parameter' and name in executions.callers:
    caller, instruction = executions.callers[name]
    call = module.computations[caller].instructions[instruction]
    if call.opcode not in ('fusion', 'call'):
      return False
    return _came_as_s8(
      module, executions, caller, call.operands[int(x.literal)]
    )
  if x.opcode in _MOVES:
    return _came_as_s8(module, executions, name, x.operands[0])
  if x.opcode == 'fusion':
    (inner,) = x.computations('calls')
    root = module.computations[inner].root
    return _came_as_s8(module, executions, inner, root)
  return False


def _ints(text: str | None) -> list[int]:
  return [int(part) for part in re.findall(r'\d+', text or '')]
