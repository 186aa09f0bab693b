// The C++ endpoint of conformance/README.md: requests on standard input, answers on standard output. Compiled
// with KVPACK_HEADERS_ALONE it needs no compiled library, and OpenSSL hashes.
#include "conformance/core_session.h"
#include "conformance/serve.h"

#if defined(KVPACK_HEADERS_ALONE)
int main() {
  kvpack::conformance::CoreSession endpoint;
  return kvpack::conformance::serve(endpoint.session());
}
#else
#include "conformance/kernels.h"

int main() {
  const kvpack::Sha256Kernels sha256 = kvpack::conformance::endpoint_kernels();
  kvpack::conformance::CoreSession endpoint(sha256);
  kvpack::conformance::add_kernels(endpoint.session());
  return kvpack::conformance::serve(endpoint.session());
}
#endif
