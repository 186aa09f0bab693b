"""Independent reference codec of the kvpack formats, written from docs/format with the standard library.

One module per concept: `objects` (canonical objects), `validate` (their rules), `keys`, `identities`,
`frames`, `sidecar`, `chunk`, `pack`, `merkle`, `pack_set`, `transform`, `rotation`, `cut_chain`,
`canonical_json`. `fixtures` holds the published inputs, `operations` the line protocol of
conformance/README.md. The code favours being read over being fast and does not wipe secrets: it is a
yardstick, not a product.
"""
