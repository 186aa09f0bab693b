"""Key schedule, key ring and tenant namespace."""

from .crypto import hkdf, mac, sha256
from .errors import Reject, need
from .scalars import le

STABLE_LABELS = {
    "namespace": b"kvpack/v1/stable/namespace",
    "prefix": b"kvpack/v1/stable/prefix",
    "chunk_identity": b"kvpack/v1/stable/chunk-identity",
}
EPOCH_LABELS = {
    "manifest_auth": b"kvpack/v1/epoch/manifest-auth",
    "manifest_encryption": b"kvpack/v1/epoch/manifest-encryption",
    "object_identity": b"kvpack/v1/epoch/object-identity",
    "chunk_encryption": b"kvpack/v1/epoch/chunk-encryption",
}
KEY_NAMES = sorted(list(STABLE_LABELS) + list(EPOCH_LABELS))


def derive_schedule(stable_root, epoch_root, tenant, epoch):
    """The seven keys by name."""
    need(epoch != 0, "semantics", "key epoch must be nonzero")
    keys = {name: hkdf(tenant, stable_root, label) for name, label in STABLE_LABELS.items()}
    salt = tenant + le(8, epoch)
    keys.update({name: hkdf(salt, epoch_root, label) for name, label in EPOCH_LABELS.items()})
    return keys


class KeyRing:
    """The schedules of one tenant that a reader may use, by epoch."""

    def __init__(self, stable_root, epoch_root, tenant, epochs):
        self.tenant = tenant
        self.schedules = {e: derive_schedule(stable_root, epoch_root, tenant, e) for e in epochs}

    def schedule(self, epoch):
        if epoch not in self.schedules:
            raise Reject("not_found", "key epoch is outside the readable window")
        return self.schedules[epoch]

    def stable(self):
        """A schedule to take stable keys from; they are the same in every epoch."""
        return next(iter(self.schedules.values()))


def namespace_id(namespace_key, operator):
    need(len(operator) < 1 << 32, "bounds", "tenant ID is too long")
    return mac(namespace_key, b"kvpack/v1/namespace\0", le(4, len(operator)), operator)


def tenant_namespace(stable_root, epoch_root, epoch, operator):
    """The tenant id a store uses, from the operator's own name for the tenant."""
    bootstrap = derive_schedule(stable_root, epoch_root, sha256(operator), epoch)
    return namespace_id(bootstrap["namespace"], operator)
