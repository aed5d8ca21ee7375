"""Writes small GGUF files of models, as llama.cpp's converter does.

The tensors of a Hugging Face folder get GGUF's names, the rows of queries and
keys are interleaved where llama.cpp rotates neighbours, and a Gemma's gains get
their 1.
"""

import gguf
import numpy as np

ARCHITECTURES = {
  'arcee': 'arcee',
  'gemma3_text': 'gemma3',
  'llama': 'llama',
  'olmo2': 'olmo2',
  'olmo3': 'olmo2',
  'qwen2': 'qwen2',
  'qwen3': 'qwen3',
  'smollm3': 'smollm3',
}
INTERLEAVED = ('arcee', 'llama', 'smollm3')
BEHIND = ('gemma3', 'olmo2')  # With norms behind attention and feed-forward.
_WORDS = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  'lm_head': 'output',
  'model.layers.': 'blk.',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'input_layernorm': 'attn_norm',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
}
TOKENS = [f't{index}' for index in range(90)]


def rename(name: str, architecture: str) -> str:
  """Returns GGUF's name of a folder's tensor."""
  norm = 'post_attention_norm' if architecture in BEHIND else 'ffn_norm'
  for theirs, ours in [
    *_WORDS.items(),
    ('post_attention_layernorm', norm),
  ]:
    name = name.replace(theirs, ours)
  return name


def interleave(matrix: np.ndarray, head_dim: int) -> np.ndarray:
  """Returns rows whose rotary pairs lie beside each other."""
  halves = matrix.reshape(-1, 2, head_dim // 2, matrix.shape[1])
  return halves.swapaxes(1, 2).reshape(matrix.shape)


def tensors_of(fields: dict, tensors: dict) -> dict[str, np.ndarray]:
  """Returns a folder's tensors as GGUF names and stores them."""
  architecture = ARCHITECTURES[fields['model_type']]
  found = {}
  for name, x in tensors.items():
    if architecture in INTERLEAVED and name.endswith(
      ('q_proj.weight', 'k_proj.weight')
    ):
      x = interleave(x, fields['head_dim'])
    if architecture == 'gemma3' and 'norm' in name:
      x = x + np.float32(1)
    found[rename(name, architecture)] = x
  return found


def metadata_of(fields: dict) -> dict:
  """Returns the metadata of sizes; angles are the caller's."""
  own = {
    'block_count': fields['num_hidden_layers'],
    'context_length': fields['max_position_embeddings'],
    'embedding_length': fields['hidden_size'],
    'feed_forward_length': fields['intermediate_size'],
    'attention.head_count': fields['num_attention_heads'],
    'attention.head_count_kv': fields['num_key_value_heads'],
    'attention.key_length': fields['head_dim'],
    'attention.value_length': fields['head_dim'],
    'attention.layer_norm_rms_epsilon': fields['rms_norm_eps'],
    'vocab_size': fields['vocab_size'],
  }
  if fields.get('sliding_window'):
    own['attention.sliding_window'] = fields['sliding_window']
    own['attention.sliding_window_pattern'] = [
      one == 'sliding_attention' for one in fields['layer_types']
    ]
  name = ARCHITECTURES[fields['model_type']]
  return {f'{name}.{key}': value for key, value in own.items()}


def write(path, architecture: str, metadata: dict, tensors: dict):
  """Writes a file and returns its path.

  Args:
    path: of the file.
    architecture: as `general.architecture`.
    metadata: fields by key: numbers, strings, and lists of them.
    tensors: {name: an array of floats, or (bytes, type) of a quantized one}.
  """
  writer = gguf.GGUFWriter(path, architecture)
  for key, value in metadata.items():
    _ADDERS[type(value)](writer, key, value)
  for name, x in tensors.items():
    if isinstance(x, tuple):
      writer.add_tensor(name, x[0], raw_dtype=x[1])
    else:
      writer.add_tensor(name, x)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


_ADDERS = {
  bool: gguf.GGUFWriter.add_bool,
  int: gguf.GGUFWriter.add_uint32,
  float: gguf.GGUFWriter.add_float32,
  str: gguf.GGUFWriter.add_string,
  list: gguf.GGUFWriter.add_array,
}
