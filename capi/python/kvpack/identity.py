"""Under what a cache was computed: the model's digests, other inputs, and what a reader expects."""
import ctypes
import dataclasses
from typing import Dict, Iterable, List, Mapping, Optional, Tuple, Union

from . import _structs as c
from ._handles import Handle
from ._library import call, lib, text
from ._values import IdLike, id_bytes, identity, listed_pairs, pairs_of, utf8
from .errors import bad_argument
from .family import Family, check_family

Auxiliary = Iterable[Tuple[IdLike, IdLike]]
"""Inputs that are no tokens, for example images: for each what kind, and which."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Five digests of the adapter's, none zero, each 32 bytes or 64 hexadecimal digits.

    Attributes:
        weights_config: weights and their configuration.
        adapters: a fixed value of the adapter's for "no adapter".
        tokenizer_template: tokenizer and chat template.
        position_semantics: effective RoPE, window, softcap, epsilon.
        qualified_math: kernels and arithmetic whose results are taken for equal.
    """

    weights_config: IdLike
    adapters: IdLike
    tokenizer_template: IdLike
    position_semantics: IdLike
    qualified_math: IdLike

    def _struct(self) -> c.kvpack_model:
        return c.kvpack_model(**{field.name: identity(getattr(self, field.name), field.name)
                                 for field in dataclasses.fields(self)})


def model_struct(model) -> c.kvpack_model:
    """A model as C has it."""
    if not isinstance(model, Model):
        raise bad_argument("model", "is a %s, not a Model" % type(model).__name__)
    return model._struct()


def auxiliary_array(auxiliary: Optional[Auxiliary]):
    """Other inputs as an array, or None when there are none."""
    pairs = listed_pairs(() if auxiliary is None else auxiliary, "auxiliary")
    inputs = [c.kvpack_auxiliary_input(identity(kind, "type_id"), identity(value, "value_id")) for kind, value in pairs]
    return (c.kvpack_auxiliary_input * len(inputs))(*inputs) if inputs else None


class Identity(Handle):
    """Values of any of the fields by which two caches may differ; immutable.

    The fields, in order of comparison: weights_config, adapters, tokenizer_template, position_semantics,
    qualified_math, engine_cache_abi, topology, shard_map, family_id, auxiliary_root, token_count, token_root,
    manifest_id.
    """

    _what = "identity"

    def __init__(self, model: Optional[Model] = None, family: Optional[Family] = None,
                 fields: Optional[Mapping[str, Union[str, bytes, int]]] = None):
        """
        Args:
            model: sets its five fields.
            family: sets its four fields.
            fields: further ones by name; identities as 32 bytes or hexadecimal digits, token_count as a number.
        """
        made = ctypes.c_void_p()
        call(lib.kvpack_identity_new, ctypes.byref(made))
        self._own(made.value, lib.kvpack_identity_free)
        if model is not None:
            call(lib.kvpack_identity_set_model, made, ctypes.byref(model_struct(model)))
        if family is not None:
            with check_family(family)._use() as pointer:
                call(lib.kvpack_identity_set_family, made, pointer)
        for name, value in pairs_of(fields, "fields"):
            value = value.hex() if isinstance(value, bytes) else str(value)
            call(lib.kvpack_identity_set, made, _field_name(name), utf8(value, "value"))

    @classmethod
    def _of_cut(cls, cut_pointer) -> "Identity":
        made = ctypes.c_void_p()
        call(lib.kvpack_identity_of_cut, ctypes.byref(made), cut_pointer)
        self = cls.__new__(cls)
        self._own(made.value, lib.kvpack_identity_free)
        return self

    def get(self, field: str) -> Optional[str]:
        """The value of a field as text, or None."""
        with self._use() as pointer:
            return text(lib.kvpack_identity_get(pointer, _field_name(field)))

    def fields(self) -> Dict[str, str]:
        """All fields that have a value, in order of comparison."""
        values = ((name, self.get(name)) for name in field_names())
        return {name: value for name, value in values if value is not None}


def _field_name(name) -> bytes:
    encoded = utf8(name, "field")
    if b"\0" in encoded:
        raise bad_argument("field", "has a NUL byte")
    return encoded


def field_names() -> List[str]:
    """The names of all fields, in order of comparison."""
    return [text(lib.kvpack_identity_field_name(i)) for i in range(lib.kvpack_identity_field_count())]


def cut_fields(cut: c.kvpack_input_cut) -> Tuple[bytes, bytes, int]:
    """An input cut: token root, auxiliary root, token count."""
    return id_bytes(cut.token_root), id_bytes(cut.auxiliary_root), cut.token_count
