"""Serves a load by llama.cpp on this CPU, through its C API's batches.

The other side of a comparison: `write` turns a folder of `hugging_face.write`
into its file. Needs llama-cpp-python, which compiles llama.cpp from source, and
gguf; neither is in our extras.

llama.cpp has the parts of continuous batching, not the loop: a batch of tokens
of several sequences, each with positions and a cache of its own. The loop here
is the smallest one. A pass takes the next token of each running answer, then
as many prompt tokens as the chunk has room for, in the order of arrival; numpy
finds the likeliest token. Nothing is reused between requests.

Where others use the machine too, set OMP_WAIT_POLICY=passive before this is
imported: its threads otherwise spin while they wait for each other.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import statistics
import time

import gguf
import llama_cpp
import numpy as np
import safetensors

from kaiju_jax.experiments.benchmarks.load_test import load

# Of the matrices. Q8_0 is blocks of 32 weights with a scale each.
DTYPES = {
  'float32': gguf.GGMLQuantizationType.F32,
  'float16': gguf.GGMLQuantizationType.F16,
  'bfloat16': gguf.GGMLQuantizationType.BF16,
  'int8': gguf.GGMLQuantizationType.Q8_0,
}
ARCHITECTURES = {
  'arcee': gguf.MODEL_ARCH.ARCEE,
  'llama': gguf.MODEL_ARCH.LLAMA,
  'qwen3': gguf.MODEL_ARCH.QWEN3,
}
# llama.cpp rotates x[i] with x[i + K/2] in these, as the folder does.
_HALVES = ('qwen3',)
# The contexts of `runner`, open until the process ends.
_OPENED = contextlib.ExitStack()
CACHES = {
  'float32': llama_cpp.GGML_TYPE_F32,
  'float16': llama_cpp.GGML_TYPE_F16,
}


def write(
  path: str | os.PathLike[str],
  folder: str | os.PathLike[str],
  dtype: str = 'float32',
) -> None:
  """Writes a folder's model as llama.cpp reads it, without a vocabulary.

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
    own = kind if value.ndim > 1 else gguf.GGMLQuantizationType.F32
    writer.add_tensor(
      names.get_name(name, try_suffixes=('.weight',)),
      gguf.quantize(value, own),
      raw_dtype=own,
    )
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
  writer.add_vocab_size(config['vocab_size'])
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
  # Token ids go in and come out.
  writer.add_tokenizer_model('none')


def _paired(weight: np.ndarray, size: int) -> np.ndarray:
  """Returns a projection whose heads rotate x[2i] with x[2i + 1].

  The folder's rotate x[i] with x[i + K/2].
  """
  heads_HKD = weight.reshape(-1, 2, size // 2, weight.shape[-1])
  return np.ascontiguousarray(heads_HKD.swapaxes(1, 2)).reshape(weight.shape)


@dataclasses.dataclass
class _Row:
  """A request that is being served in a sequence of llama.cpp."""

  number: int  # Of the request.
  sequence: int  # Of llama.cpp.
  # Tokens that it takes next: of the prompt, or the newest one.
  next: np.ndarray
  fed: int = 0  # Tokens that its cache holds.
  # The answer so far.
  tokens: list[int] = dataclasses.field(default_factory=list)
  # When each of them was there.
  seconds: list[float] = dataclasses.field(default_factory=list)


def serve(
  path: str | os.PathLike[str],
  arrivals: Sequence[load.Arrival],
  *,
  in_flight: int = 8,
  chunk: int = 256,
  cache: str = 'float16',
  threads: int | None = None,
) -> list[load.Timeline]:
  """Serves a load in real time, greedily, and returns its timelines.

  The first requests, which do not count, are as many as may be in flight.

  Args:
    path: written by `write`.
    arrivals: the load, in the order in which it comes. All at second 0 measure
      throughput with `in_flight` at a time.
    in_flight: most requests at a time; others wait.
    chunk: most tokens in a pass, of prompts and answers together.
    cache: one of `CACHES`, of keys and values.
    threads: by default one per core that is ours.

  Returns:
    The timelines, in the order of the arrivals, their seconds since the call
    took up the load.

  Raises:
    RuntimeError: llama.cpp refused the file or a pass.
  """
  longest = max(len(x.tokens) + x.max_tokens for x in arrivals)
  with _context(
    path, in_flight, longest, max(chunk, in_flight), cache, threads
  ) as context:
    rng = np.random.default_rng(2**32 - 1)
    length = min(chunk, longest - 1)
    warm_up = [
      load.Arrival(0.0, rng.integers(0, context.vocabulary, length), 4)
      for _ in range(in_flight)
    ]
    _serve(context, warm_up, in_flight)
    return _serve(context, arrivals, in_flight)


def runner(
  path: str | os.PathLike[str],
  batch: int,
  length: int,
  steps: int,
  clock: Callable[[], float] = time.perf_counter,
) -> Callable[[], tuple[float, float]]:
  """Returns a function that times one prefill and the median step after it.

  Args:
    path: the model's file.
    batch: rows, each with other random tokens.
    length: tokens of a prompt.
    steps: decoding steps in a run.
    clock: returns seconds.
  """
  context = _OPENED.enter_context(
    _context(path, batch, length + steps + 1, batch * length, 'float16', None)
  )
  rng = np.random.default_rng(0)
  tokens_BL = rng.integers(0, context.vocabulary, (batch, length), np.int32)

  def run():
    taken = []
    pieces = [(row, 0, tokens) for row, tokens in enumerate(tokens_BL)]
    for step in range(1 + steps):
      started = clock()
      found = context.run(pieces)
      taken.append(clock() - started)
      pieces = [
        (row, length + step, np.array([token]))
        for row, token in enumerate(found)
      ]
    for row in range(batch):
      context.forget(row)
    return taken[0], statistics.median(taken[1:])

  return run


class _Context:
  """llama.cpp with a model, and a batch to fill."""

  def __init__(self, pointer, vocabulary: int, chunk: int):
    self.pointer = pointer
    self.vocabulary = vocabulary
    self.chunk = chunk
    self._batch = llama_cpp.llama_batch_init(chunk, 0, 1)

  def close(self) -> None:
    llama_cpp.llama_batch_free(self._batch)

  def run(self, pieces: Sequence[tuple[int, int, np.ndarray]]) -> list[int]:
    """Returns the likeliest token behind each piece.

    Args:
      pieces: of each: the sequence, the first position, and the tokens.

    Raises:
      RuntimeError: llama.cpp refused them.
    """
    batch = self._batch
    place = 0
    for sequence, first, tokens in pieces:
      for offset, token in enumerate(tokens):
        batch.token[place] = token
        batch.pos[place] = first + offset
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = sequence
        batch.logits[place] = offset == len(tokens) - 1
        place += 1
    batch.n_tokens = place
    status = llama_cpp.llama_decode(self.pointer, batch)
    if status:
      raise RuntimeError(f'llama_decode of {place} tokens gave {status}.')
    found = []
    place = 0
    for _, _, tokens in pieces:
      place += len(tokens)
      logits = llama_cpp.llama_get_logits_ith(self.pointer, place - 1)
      logits_V = np.ctypeslib.as_array(logits, (self.vocabulary,))
      found.append(int(logits_V.argmax()))
    return found

  def forget(self, sequence: int) -> None:
    memory = llama_cpp.llama_get_memory(self.pointer)
    llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)


# llama.cpp calls it, so it must live as long as the process.
@llama_cpp.llama_log_callback
def _silent(level, text, data):
  del level, text, data


@contextlib.contextmanager
def _context(
  path, in_flight: int, longest: int, chunk: int, cache: str, threads
) -> Iterator[_Context]:
  llama_cpp.llama_log_set(_silent, ctypes.c_void_p())
  llama_cpp.llama_backend_init()
  model = llama_cpp.llama_model_load_from_file(
    os.fspath(path).encode(), llama_cpp.llama_model_default_params()
  )
  if not model:
    raise RuntimeError(f'{path}: llama.cpp does not load it.')
  params = llama_cpp.llama_context_default_params()
  params.n_ctx = in_flight * -(-longest // 256) * 256
  params.n_batch = params.n_ubatch = chunk
  params.n_seq_max = in_flight
  params.type_k = params.type_v = CACHES[cache]
  params.n_threads = threads or len(os.sched_getaffinity(0))
  params.n_threads_batch = params.n_threads
  pointer = llama_cpp.llama_init_from_model(model, params)
  if not pointer:
    raise RuntimeError(f'{path}: llama.cpp makes no context for it.')
  vocabulary = llama_cpp.llama_vocab_n_tokens(
    llama_cpp.llama_model_get_vocab(model)
  )
  context = _Context(pointer, vocabulary, chunk)
  try:
    yield context
  finally:
    context.close()
    llama_cpp.llama_free(pointer)
    llama_cpp.llama_model_free(model)


def _serve(
  context: _Context, arrivals: Sequence[load.Arrival], in_flight: int
) -> list[load.Timeline]:
  free = list(range(in_flight))
  rows: list[_Row] = []
  done = []
  coming = 0
  began = time.perf_counter()
  while len(done) < len(arrivals):
    now = time.perf_counter() - began
    while free and coming < len(arrivals) and arrivals[coming].seconds <= now:
      rows.append(_Row(coming, free.pop(), arrivals[coming].tokens))
      coming += 1
    if not rows:
      time.sleep(max(0.0, arrivals[coming].seconds - now))
      continue
    for row in _passed(context, rows, began):
      if len(row.tokens) == arrivals[row.number].max_tokens:
        context.forget(row.sequence)
        free.append(row.sequence)
        rows.remove(row)
        done.append(row)
  return [
    load.Timeline(
      arrivals[row.number],
      np.array(row.tokens, np.int32),
      np.array(row.seconds),
    )
    for row in sorted(done, key=lambda row: row.number)
  ]


def _passed(context: _Context, rows: list[_Row], began: float) -> list[_Row]:
  """Runs a pass, and returns the rows that got a token."""
  left = context.chunk
  pieces, taken = [], []
  # Answers first: their next piece is one token.
  for row in sorted(rows, key=lambda row: not row.tokens):
    piece = row.next[:left]
    if len(piece):
      pieces.append((row.sequence, row.fed, piece))
      taken.append(row)
      left -= len(piece)
  found = context.run(pieces)
  now = time.perf_counter() - began
  finished = []
  for row, (_, _, piece), token in zip(taken, pieces, found):
    row.fed += len(piece)
    row.next = row.next[len(piece) :]
    if not len(row.next):
      row.next = np.array([token])
      row.tokens.append(token)
      row.seconds.append(now)
      finished.append(row)
  return finished
