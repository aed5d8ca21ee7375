"""Serves a load by llama.cpp's own server, in this process without HTTP.

The other side of a comparison: `write` turns a folder of `hugging_face.write`
into its file, and `recode` a file into one of Q8_0. Needs xllamacpp and gguf.
Nothing is reused between requests.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
import json
import os
import pathlib
import re
import time
from typing import Any

import gguf
import numpy as np
import safetensors

from kaiju_jax.experiments.benchmarks.load_test import load

_KINDS = gguf.GGMLQuantizationType
# Of the matrices. Q8_0 is blocks of 32 weights with a scale each.
DTYPES = {'float32': _KINDS.F32, 'int8': _KINDS.Q8_0}
ARCHITECTURES = {
  'arcee': gguf.MODEL_ARCH.ARCEE,
  'llama': gguf.MODEL_ARCH.LLAMA,
  'qwen3': gguf.MODEL_ARCH.QWEN3,
}
# llama.cpp rotates x[i] with x[i + K/2] in these, as the folder does.
_HALVES = ('qwen3',)


def write(
  path: str | os.PathLike[str],
  folder: str | os.PathLike[str],
  dtype: str = 'float32',
) -> None:
  """Writes a folder's model as llama.cpp reads it; token n's text is `<n>`.

  Args:
    path: of the new file, by custom with the ending .gguf.
    folder: written by `hugging_face.write`.
    dtype: one of `DTYPES`; vectors are always float32.

  Raises:
    KeyError: no such dtype.
    OSError: the folder is not there.
  """
  kind = DTYPES[dtype]
  folder = pathlib.Path(folder)
  config = json.loads((folder / 'config.json').read_text())
  family = config['model_type']
  writer = gguf.GGUFWriter(path, family)
  _add_config(writer, config)
  names = gguf.get_tensor_name_map(
    ARCHITECTURES[family], config['num_hidden_layers']
  )
  for name, value in _tensors(folder / 'model.safetensors'):
    is_turned = name.endswith(('q_proj.weight', 'k_proj.weight'))
    if is_turned and family not in _HALVES:
      value = _paired(value, config['head_dim'])
    _add(writer, names.get_name(name, try_suffixes=('.weight',)), value, kind)
  _finish(writer)


def recode(path: str | os.PathLike[str], source: pathlib.Path) -> None:
  """Writes a GGUF file again, with all of its matrices in Q8_0."""
  reader = gguf.GGUFReader(source)
  fields = {
    name: field
    for name, field in reader.fields.items()
    if not name.startswith('GGUF.')
  }
  writer = gguf.GGUFWriter(path, fields.pop('general.architecture').contents())
  for name, field in fields.items():
    kinds = field.types[0], field.types[-1] if len(field.types) > 1 else None
    writer.add_key_value(name, field.contents(), *kinds)
  for tensor in reader.tensors:
    floats = gguf.dequantize(tensor.data, tensor.tensor_type)
    _add(writer, tensor.name, floats, _KINDS.Q8_0)
  _finish(writer)


def _add(writer, name: str, value: np.ndarray, kind) -> None:
  kind = kind if value.ndim > 1 else _KINDS.F32
  writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)


def _finish(writer) -> None:
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def _tensors(file: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the tensors of a file in float32."""
  with safetensors.safe_open(file, framework='flax') as opened:
    for name in opened.keys():  # noqa: SIM118
      yield name, np.asarray(opened.get_tensor(name), np.float32)


def _add_config(writer, config) -> None:
  writer.add_context_length(config['max_position_embeddings'])
  writer.add_embedding_length(config['hidden_size'])
  writer.add_block_count(config['num_hidden_layers'])
  writer.add_feed_forward_length(config['intermediate_size'])
  writer.add_head_count(config['num_attention_heads'])
  writer.add_head_count_kv(config['num_key_value_heads'])
  writer.add_key_length(config['head_dim'])
  writer.add_value_length(config['head_dim'])
  writer.add_rope_dimension_count(config['head_dim'])
  writer.add_rope_freq_base(config['rope_parameters']['rope_theta'])
  writer.add_layer_norm_rms_eps(config['rms_norm_eps'])
  # The server needs a vocabulary, though token ids go in and come out.
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('gpt-2')
  writer.add_token_list([f'<{n}>' for n in range(config['vocab_size'])])
  writer.add_token_merges(['< >'])


def _paired(weight: np.ndarray, size: int) -> np.ndarray:
  """Returns a projection whose heads rotate x[2i] with x[2i + 1].

  The folder's rotate x[i] with x[i + K/2].
  """
  heads_HKD = weight.reshape(-1, 2, size // 2, weight.shape[-1])
  return np.ascontiguousarray(heads_HKD.swapaxes(1, 2)).reshape(weight.shape)


def start(path: str | os.PathLike[str], in_flight: int, longest: int) -> Any:
  """Returns an `xllamacpp.Server` of a file; it ends with its last reference.

  Args:
    path: the file.
    in_flight: most requests at a time; others wait.
    longest: most tokens of a prompt and its answer.

  Raises:
    RuntimeError: llama.cpp does not load the file.
  """
  import xllamacpp

  params = xllamacpp.CommonParams()
  params.model.path = os.fspath(path)
  params.n_parallel = in_flight
  params.n_ctx = in_flight * -(-longest // 256) * 256
  params.cache_prompt = False
  params.verbosity = 0
  for each in params.cpuparams, params.cpuparams_batch:
    each.n_threads = len(os.sched_getaffinity(0))
  return xllamacpp.Server(params)


def serve(
  path: str | os.PathLike[str],
  arrivals: Sequence[load.Arrival],
  *,
  in_flight: int = 8,
) -> list[load.Timeline]:
  """Serves a load in real time, greedily, and returns its timelines.

  The first requests, which do not count, are as many as may be in flight.

  Args:
    path: written by `write`.
    arrivals: the load, in the order in which it comes. All at second 0 measure
      throughput with `in_flight` at a time.
    in_flight: most requests at a time; others wait.

  Returns:
    The timelines, in the order of the arrivals, their seconds since the call
    took up the load.

  Raises:
    RuntimeError: llama.cpp refused the file or a request.
  """
  longest = max(len(x.tokens) + x.max_tokens for x in arrivals)
  server = start(path, in_flight, longest)

  def run(arrivals):
    began = time.perf_counter()
    return list(pool.map(lambda one: _answer(server, one, began), arrivals))

  with futures.ThreadPoolExecutor(len(arrivals)) as pool:
    run([x._replace(seconds=0.0, max_tokens=4) for x in arrivals[:in_flight]])
    return run(arrivals)


def _answer(server, arrival: load.Arrival, began: float) -> load.Timeline:
  tokens: list[int] = []
  seconds: list[float] = []

  def note(chunk) -> bool:
    for choice in chunk.get('choices', ()):
      found = map(int, re.findall(r'<(\d+)>', choice['text']))
      tokens.extend(found)
    seconds.extend([time.perf_counter() - began] * (len(tokens) - len(seconds)))
    return False  # Go on.

  body = {
    'prompt': arrival.tokens.tolist(),
    'max_tokens': arrival.max_tokens,
    'temperature': 0,
    'stream': True,
  }
  time.sleep(max(0.0, began + arrival.seconds - time.perf_counter()))
  server.handle_completions(body, note)
  if len(tokens) != arrival.max_tokens:
    raise RuntimeError(
      f'llama.cpp gave {len(tokens)} of {arrival.max_tokens} tokens.'
    )
  return load.Timeline(arrival, np.array(tokens, np.int32), np.array(seconds))
