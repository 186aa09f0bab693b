"""As much of vLLM and of torch as the example connector needs, for machines that have neither.

The connector's base has the methods and signatures of KVConnectorBase_V1 at vLLM's commit
003df2961dd8830c317a61f9745ccd557da9fa06; tensors are numpy arrays.
"""
import abc
import dataclasses
import enum
import sys
import types

import numpy


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(abc.ABC):
    pass


class KVConnectorBase_V1(abc.ABC):
    def __init__(self, vllm_config, role, kv_cache_config):
        if vllm_config.kv_transfer_config is None:
            raise ValueError("kv_transfer_config must be set")
        self._connector_metadata = None
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    @property
    def role(self):
        return self._role

    @property
    def requires_kv_delivery(self):
        return True

    def bind_connector_metadata(self, connector_metadata):
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata

    def register_kv_caches(self, kv_caches):
        return

    @abc.abstractmethod
    def start_load_kv(self, forward_context, **kwargs):
        """Worker."""

    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name):
        """Worker."""

    @abc.abstractmethod
    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        """Worker."""

    @abc.abstractmethod
    def wait_for_save(self):
        """Worker."""

    def get_finished(self, finished_req_ids):
        return None, None

    def get_block_ids_with_load_errors(self):
        return set()

    def shutdown(self):
        return None

    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """Scheduler."""

    @abc.abstractmethod
    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        """Scheduler."""

    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output):
        """Scheduler."""

    def request_finished(self, request, block_ids):
        return False, None


# ---- the configurations that a connector reads ----

class TransferConfig:
    def __init__(self, **extra):
        self._extra = extra

    def get_from_extra_config(self, key, default):
        return self._extra.get(key, default)


@dataclasses.dataclass(frozen=True)
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    dtype: object
    kv_quant_mode: int = 0
    page_size_padded: object = None
    sliding_window: object = None
    attention_chunk_size: object = None


def vllm_config(world_size=1, **extra):
    return types.SimpleNamespace(kv_transfer_config=TransferConfig(**extra),
                                 parallel_config=types.SimpleNamespace(world_size=world_size))


def cache_config(spec, layer_names):
    return types.SimpleNamespace(
        kv_cache_groups=[types.SimpleNamespace(layer_names=layer_names, kv_cache_spec=spec)])


# ---- requests and what the scheduler says about a step ----

def request(request_id, tokens, **more):
    return types.SimpleNamespace(request_id=request_id, prompt_token_ids=tokens, **more)


def new_request(request_id, tokens, blocks, computed):
    return types.SimpleNamespace(req_id=request_id, prompt_token_ids=tokens, block_ids=(blocks,),
                                 num_computed_tokens=computed)


def step(new=(), cached=(), scheduled=None, finished=(), resumed=()):
    """cached: (request id, new blocks or None, computed tokens)."""
    return types.SimpleNamespace(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[one[0] for one in cached], new_block_ids=[None if one[1] is None else (one[1],) for one in cached],
            num_computed_tokens=[one[2] for one in cached], resumed_req_ids=set(resumed)),
        num_scheduled_tokens=dict(scheduled or {}), finished_req_ids=set(finished))


# ---- tensors ----

class DType:
    def __init__(self, name, numpy_dtype):
        self.name = name
        self.numpy_dtype = numpy.dtype(numpy_dtype)

    def __repr__(self):
        return "torch." + self.name


class Tensor:
    """A tensor in the memory of the host."""

    device = types.SimpleNamespace(type="cpu")

    def __init__(self, array, dtype):
        self.array = array
        self.dtype = dtype

    @property
    def shape(self):
        return self.array.shape

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def __getitem__(self, index):
        return Tensor(self.array[index], self.dtype)

    def index_select(self, axis, index):
        return Tensor(numpy.take(self.array, index, axis), self.dtype)

    def index_copy_(self, axis, index, source):
        assert axis == 0 and source.shape[0] == len(index)
        self.array[index] = source.array

    def transpose(self, one, other):
        return Tensor(self.array.swapaxes(one, other), self.dtype)

    def contiguous(self):
        return Tensor(numpy.ascontiguousarray(self.array), self.dtype)

    def cpu(self):
        return self

    def to(self, device):
        return self

    def view(self, *shape):
        if isinstance(shape[0], DType):
            return Tensor(self.array.view(shape[0].numpy_dtype), shape[0])
        return Tensor(self.array.reshape(shape), self.dtype)

    def numpy(self):
        return self.array


def install():
    """Puts the stubs where the connector imports from; gives torch's."""
    torch = types.ModuleType("torch")
    torch.uint8, torch.float16 = DType("uint8", "u1"), DType("float16", "f2")
    torch.bfloat16, torch.int8 = DType("bfloat16", "u2"), DType("int8", "i1")
    torch.as_tensor = lambda data, device: numpy.asarray(data)
    torch.frombuffer = lambda memory, dtype: Tensor(numpy.frombuffer(memory, dtype.numpy_dtype), dtype)
    sys.modules["torch"] = torch
    path = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    for end in range(1, len(path.split(".")) + 1):
        name = ".".join(path.split(".")[:end])
        sys.modules[name] = types.ModuleType(name)
    base = sys.modules[path]
    base.KVConnectorBase_V1, base.KVConnectorMetadata = KVConnectorBase_V1, KVConnectorMetadata
    base.KVConnectorRole = KVConnectorRole
    return torch
