"""Rolling cut chain: one id per completed cut of a token stream. Not part of any durable object."""

from .crypto import mac
from .errors import Reject, need
from .scalars import le

MAX_CUTS = 512
_DOMAIN = b"kvpack/v1/cut-chain\0"


def flat(stride):
    """A stride policy: the stride of the cut that starts at an offset."""
    need(stride != 0, "semantics", "cut stride is zero")
    return lambda offset: stride


def two_tier(head_tokens, head_stride, tail_stride):
    need(head_stride != 0, "semantics", "cut head stride is zero")
    need(tail_stride != 0, "semantics", "cut tail stride is zero")
    need(head_tokens % head_stride == 0, "semantics",
         "cut head region is not a multiple of the head stride")
    need(head_tokens % tail_stride == 0, "semantics",
         "cut head region is not a multiple of the tail stride")
    return lambda offset: head_stride if offset < head_tokens else tail_stride


class CutChain:
    """Takes tokens in pushes of any size and gives the tip of each cut they complete."""

    def __init__(self, key, namespace, policy):
        self._key, self._policy = key, policy
        self._tip = mac(key, _DOMAIN, namespace)
        self._offset = self._cuts = 0
        self._pending = []
        self._poisoned = False

    def push(self, tokens):
        if self._poisoned:
            raise Reject("poisoned", "cut chain deriver is poisoned")
        self._pending += tokens
        tips = []
        while len(self._pending) >= self._policy(self._offset):
            if self._cuts == MAX_CUTS:
                self._poisoned = True
                raise Reject("bounds", "cut chain exceeds 512 cuts")
            stride = self._policy(self._offset)
            cut, self._pending = self._pending[:stride], self._pending[stride:]
            self._tip = mac(self._key, _DOMAIN, self._tip, *[le(4, token) for token in cut])
            self._offset += stride
            self._cuts += 1
            tips.append(self._tip)
        return tips
