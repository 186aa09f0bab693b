// The C++ endpoint of conformance/README.md: requests on standard input, answers on standard output.
#include "conformance/core_session.h"
#include "conformance/serve.h"

int main() {
  kvpack::conformance::CoreSession endpoint;
  return kvpack::conformance::serve(endpoint.session());
}
