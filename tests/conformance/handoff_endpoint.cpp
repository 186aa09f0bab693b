// The endpoint of the live protocols: Handoff V2 and KVHF, as conformance/HANDOFF.md asks for them.
#include "conformance/handoff_operations.h"
#include "conformance/kernels.h"
#include "conformance/kvhf_operations.h"
#include "conformance/serve.h"

namespace {

using namespace kvpack;
using namespace kvpack::conformance;

void add_kvhf(Session& session, KvhfOperations& operations) {
  for (const char* verb : {"encode", "decode", "verdict"}) {
    for (const char* kind : {"kvhf_frame", "kvhf_begin", "kvhf_armed", "kvhf_header", "kvhf_stream",
                             "kvhf_session", "kvhf_spray", "kvhf_bundle"}) {
      if (!operations.serves(verb, kind)) continue;
      session.add_line(verb, kind, [&operations, verb, kind](Arguments& arguments) {
        return operations.answer(verb, kind, arguments);
      });
    }
  }
  session.add_control("kvhf_context", [&operations](Arguments& arguments) -> Result<Words> {
    const std::string answer = operations.answer("kvhf_context", "", arguments);
    if (answer != "ok") return fault(answer);
    return Words();
  });
}

}  // namespace

int main() {
  const Sha256Kernels sha256 = endpoint_kernels();
  HandoffOperations handoff(sha256);
  KvhfOperations kvhf(sha256);
  Session session("cpp-handoff");
  handoff.add_to(session);
  add_kvhf(session, kvhf);
  add_kernels(session);
  return serve(session);
}
