"""A KV connector for vLLM: prompts that begin like earlier ones take their cache from a kvpack store.

It implements KVConnectorBase_V1 (vllm/distributed/kv_transfer/kv_connector/v1/base.py) as it stands at vLLM's commit
003df2961dd8830c317a61f9745ccd557da9fa06, where the cache of a layer is a tensor [blocks, heads, tokens of a block, content].

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvpackConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "vllm_connector", "kv_connector_extra_config": {
            "kvpack_store": "/var/cache/kv.store", "kvpack_key": "/etc/kvpack/store.key", "kvpack_operator": "acme",
            "kvpack_model": {"weights_config": HEX, "adapters": HEX, "tokenizer_template": HEX,
                             "position_semantics": HEX, "qualified_math": HEX}}}'

The five digests are the operator's word for what the cache depends on; two engines that share them share caches. What this
example cannot prove to be the same is left alone: requests with images, adapters, embeddings or a cache salt are neither
saved nor found, and an engine of several workers, with a quantised or sliding cache, or of another layout is refused.

The scheduler's side only looks (a reader of the store), the worker's side restores and saves. A cache that fails to load is
computed again, and one that fails to be saved is not saved: neither ends a request.
"""
import dataclasses
import hashlib
import logging
import pathlib
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

import kvpack

logger = logging.getLogger(__name__)

GRAIN = 256
"""Tokens of a block of a store: cuts at its multiples are found by every prompt that begins with them."""

_DTYPES = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32"}


@dataclasses.dataclass
class Load:
    """Tokens [start, len(tokens)) are to be restored into their blocks."""

    request_id: str
    tokens: List[int]
    block_ids: List[int]
    start: int


@dataclasses.dataclass
class Save:
    """All tokens are computed by this step, and then to be saved."""

    request_id: str
    tokens: List[int]
    block_ids: List[int]


@dataclasses.dataclass
class KvpackMetadata(KVConnectorMetadata):
    """What the scheduler's side tells the worker's side about one step."""

    loads: List[Load] = dataclasses.field(default_factory=list)
    saves: List[Save] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Prompt:
    """A request whose prompt is being computed, as the scheduler's side sees it."""

    tokens: List[int]
    block_ids: List[int]
    stored: int


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _is_plain(request: Any) -> bool:
    """Whether the tokens say everything about the request's cache."""
    return not any(getattr(request, name, None) for name in ("mm_features", "lora_request", "cache_salt")) and (
        getattr(request, "prompt_embeds", None) is None)


class KvpackConnector(KVConnectorBase_V1):
    """See the text of this file."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        if vllm_config.parallel_config.world_size != 1:
            raise ValueError("KvpackConnector serves engines of one worker")
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError("KvpackConnector serves caches of one kind of attention")
        group = kv_cache_config.kv_cache_groups[0]
        spec = group.kv_cache_spec
        if type(spec).__name__ != "FullAttentionSpec" or spec.sliding_window is not None or (
                spec.attention_chunk_size is not None or int(spec.kv_quant_mode) != 0 or spec.page_size_padded is not None):
            raise ValueError("KvpackConnector serves plain caches of full attention")
        if GRAIN % spec.block_size:
            raise ValueError("KvpackConnector serves blocks of a size that divides %d tokens" % GRAIN)
        if str(spec.dtype) not in _DTYPES:
            raise ValueError("KvpackConnector does not serve caches of %s" % spec.dtype)
        self._block_size = spec.block_size
        self._layer_names: List[str] = list(group.layer_names)
        self._row = (spec.num_kv_heads, spec.head_size + spec.head_size_v)
        self._layers: Dict[str, Any] = {}
        self._root = pathlib.Path(self._option("kvpack_store"))
        self._quota_bytes = self._kv_transfer_config.get_from_extra_config("kvpack_quota_bytes", 0)
        self._model = kvpack.Model(**self._option("kvpack_model"))
        self._keys = kvpack.Keys(self._option("kvpack_key"), operator=self._option("kvpack_operator"), active_epoch=1)
        self._family = kvpack.Family(
            [kvpack.State(index, name, _DTYPES[str(spec.dtype)], (kvpack.TOKENS,) + self._row)
             for index, name in enumerate(self._layer_names)],
            engine_cache_abi=_digest("kvpack vLLM connector 1: [heads, content] of each token"),
            topology=_digest("one worker"), shard_map=_digest("all heads"))
        self._store: Optional[kvpack.Store] = None
        self._plain: Set[str] = set()
        self._found: Dict[str, int] = {}
        self._loads: Dict[str, Tuple[int, int]] = {}
        self._prompts: Dict[str, _Prompt] = {}
        self._failed_blocks: Set[int] = set()
        if role == KVConnectorRole.WORKER:
            self._store = self._open_for_writing()

    def _option(self, name: str) -> Any:
        value = self._kv_transfer_config.get_from_extra_config(name, None)
        if value is None:
            raise ValueError("KvpackConnector needs %s in kv_connector_extra_config" % name)
        return value

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a later miss, no more."""
        return False

    # ---- the scheduler's side ----

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        """How many tokens more than the engine has itself. At least the last one is left to be computed."""
        tokens = request.prompt_token_ids
        self._found.pop(request.request_id, None)
        if not tokens or not _is_plain(request):
            return 0, False
        self._plain.add(request.request_id)
        usable = (len(tokens) - 1) // GRAIN * GRAIN
        if usable <= num_computed_tokens:
            return 0, False
        try:
            cut = self._reader().find(self._family, self._model, tokens[:usable]).token_count
        except kvpack.Error as refusal:
            if not isinstance(refusal, kvpack.NotFoundError):  # No worker has made a store yet.
                logger.warning("kvpack: not looked up: %s", refusal)
            return 0, False
        self._found[request.request_id] = num_computed_tokens
        return max(0, cut - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The scheduler has taken so many of the tokens that were found."""
        start = self._found.pop(request.request_id, 0)
        if num_external_tokens > 0:
            self._loads[request.request_id] = (start, start + num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """What is to be loaded before this step and saved behind it."""
        meta = KvpackMetadata()
        for request_id in scheduler_output.finished_req_ids:
            self._prompts.pop(request_id, None)
            self._plain.discard(request_id)
        for request in scheduler_output.scheduled_new_reqs:
            tokens = request.prompt_token_ids
            # What a step says of a request does not say all; what it was asked for with does.
            if not tokens or request.req_id not in self._plain:
                continue
            prompt = _Prompt(list(tokens), list(request.block_ids[0]), 0)
            self._prompts[request.req_id] = prompt
            self._add_load(meta, request.req_id, prompt)
            self._add_save(meta, scheduler_output, request.req_id, prompt, request.num_computed_tokens)
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            known = self._prompts.get(request_id)
            if known is None:
                continue
            if request_id in cached.resumed_req_ids:
                known.block_ids = []
            known.block_ids += blocks[0] if blocks else []
            self._add_load(meta, request_id, known)
            self._add_save(meta, scheduler_output, request_id, known, computed)
        self._loads.clear()
        return meta

    def _add_load(self, meta: KvpackMetadata, request_id: str, prompt: _Prompt) -> None:
        if request_id not in self._loads:
            return
        start, end = self._loads.pop(request_id)
        meta.loads.append(Load(request_id, prompt.tokens[:end], prompt.block_ids[:end // self._block_size], start))
        prompt.stored = max(prompt.stored, end)

    def _add_save(self, meta: KvpackMetadata, output: Any, request_id: str, prompt: _Prompt, computed: int) -> None:
        """Saves the prompt, up to its last multiple, with the step that completes it."""
        goal = len(prompt.tokens) // GRAIN * GRAIN
        if prompt.stored < goal <= computed + output.num_scheduled_tokens.get(request_id, 0):
            meta.saves.append(Save(request_id, prompt.tokens[:goal], prompt.block_ids[:goal // self._block_size]))
            prompt.stored = goal

    def _reader(self) -> kvpack.Store:
        if self._store is None:
            self._store = kvpack.Store.open_read_only(self._root, self._keys)
        return self._store

    # ---- the worker's side ----

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        """The tensors of all layers, [blocks, heads, tokens of a block, content]."""
        for name in self._layer_names:
            shape = tuple(kv_caches[name].shape)
            if len(shape) != 4 or (shape[1], shape[3]) != self._row or shape[2] != self._block_size:
                raise ValueError("KvpackConnector does not know the layout of %s: %s" % (name, shape))
        self._layers = {name: kv_caches[name] for name in self._layer_names}

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Restores what this step goes on from. All of a request, or what is reported as not loaded."""
        for load in self._metadata().loads:
            loaded = load.start
            try:
                restored = self._worker_store().restore(self._family, self._model, load.tokens)
                if restored.token_count > load.start:
                    self._to_device(load, restored)
                    loaded = restored.token_count
            except kvpack.Error as refusal:
                logger.warning("kvpack: %s is computed again: %s", load.request_id, refusal)
            self._failed_blocks.update(load.block_ids[loaded // self._block_size:])

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything has been loaded by start_load_kv."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Everything is saved by wait_for_save: a cut has all layers or none."""

    def wait_for_save(self) -> None:
        """Saves what this step has completed, before its blocks can be used for anything else."""
        saves = self._metadata().saves
        if saves:
            self._wait_for_device()
        for save in saves:
            readers = [self._reader_of(self._layers[name], save.block_ids) for name in self._layer_names]
            try:
                self._worker_store().save(self._family, self._model, save.tokens, readers, export_stride_tokens=GRAIN,
                                          parallelism=1, label="vLLM")
            except kvpack.Error as refusal:
                logger.warning("kvpack: %s is not saved: %s", save.request_id, refusal)

    def get_block_ids_with_load_errors(self) -> Set[int]:
        """Blocks that vLLM is to compute after all."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def shutdown(self) -> None:
        """Closes the store."""
        if self._store is not None:
            self._store.close()

    def _metadata(self) -> KvpackMetadata:
        meta = self._get_connector_metadata()
        assert isinstance(meta, KvpackMetadata)
        return meta

    def _worker_store(self) -> kvpack.Store:
        assert self._store is not None
        return self._store

    def _open_for_writing(self) -> kvpack.Store:
        options: Dict[str, Any] = {
            "quota_bytes": self._quota_bytes, "on_fault": lambda fault: logger.warning("kvpack: damaged: %s", fault)}
        try:
            return kvpack.Store.open(self._root, self._keys, **options)
        except kvpack.NotFoundError:
            return kvpack.Store.create(self._root, self._keys, **options)

    def _wait_for_device(self) -> None:
        """The library may read in a thread of its own, whose device stream is not that of the model."""
        for layer in self._layers.values():
            if layer.device.type == "cuda":
                torch.cuda.synchronize(layer.device)

    def _reader_of(self, layer: Any, block_ids: List[int]) -> Any:
        """Gives a layer's blocks from its first token on, some at a time."""
        waiting = list(block_ids)
        ready = memoryview(b"")

        def read(room: memoryview) -> int:
            nonlocal ready
            if not ready and waiting:
                block_bytes = layer[0].numel() * layer.element_size()
                count = max(1, len(room) // block_bytes)
                some, waiting[:count] = waiting[:count], []
                index = torch.as_tensor(some, device=layer.device)
                rows = layer.index_select(0, index).transpose(1, 2).contiguous().cpu()
                ready = memoryview(rows.view(torch.uint8).numpy()).cast("B")
            size = min(len(room), len(ready))
            room[:size] = ready[:size]
            ready = ready[size:]
            return size
        return read

    def _to_device(self, load: Load, restored: kvpack.Restored) -> None:
        """Puts the restored tokens from load.start on into their blocks."""
        first = load.start // self._block_size
        end = restored.token_count // self._block_size
        for name, plane in zip(self._layer_names, restored.planes):
            layer = self._layers[name]
            rows = torch.frombuffer(plane, dtype=layer.dtype).view(end, self._block_size, *self._row)[first:]
            index = torch.as_tensor(load.block_ids[first:end], device=layer.device)
            layer.index_copy_(0, index, rows.transpose(1, 2).to(layer.device))
