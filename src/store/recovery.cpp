#include "store/recovery.h"

namespace kvpack::store {

Status recover(StoreContext& context) {
  return Pins::sweep(context.files.pins());
}

}  // namespace kvpack::store
